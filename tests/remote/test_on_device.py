"""Workers that train on a device: with any failures, credits and replica equal those of the CPU bit for bit."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.engine.devices import Device, DeviceFailedError
from gridml.errors import DEVICE
from gridml.protocol import bundle
from master.backends.registry import make
from master.backends.script import ScriptedLives, Steady
from master.launch import start
from master.planning.trial import try_out
from master.ports.environment import Environment
from master.simulation.faulty_network import Chances
from master.simulation.result import dump, verify_credits
from master.simulation.scenario import Absent, Scenario, Storms
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from remote.stepped import Trainer
from tests.support.pretend_device import NAME, STATE

pytestmark = pytest.mark.pretended
COSTS = Costs(exec_s=0.5, copy_s=0.01, start_s=1.0, push_s=0.1, boot_s=2.0)
FAULTS = Chances(lose=0.05, repeat=0.05, truncate=0.03, corrupt=0.03, delay_s=3.0)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    before = torch.get_num_threads()  # trainers leave torch with one
    yield
    torch.set_num_threads(before)
    STATE.limit, STATE.fails_after, STATE.late, STATE.broken = None, None, None, False


def trained(root: Path) -> dict[str, np.ndarray]:
    return bundle.decode((root / "final.safetensors").read_bytes())[1]


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert values.dtype == other[name].dtype
        np.testing.assert_array_equal(values, other[name], err_msg=name)


def play(source: Path, root: Path, place: str, *, workers: int = 1, scenario: Scenario | None = None) -> list[str]:
    """Train a program on a device, and return the content of the run's ledger."""
    settings = Settings(source, backend="simulated", workers=workers, seed=5, steps_each=0, push_every=32)
    play_scenario(settings, scenario or Scenario(Steady(workers), COSTS), root, trainer=on(source, place))
    verify_credits(root)
    with opened(root) as ledger:
        return [*dump(ledger)]


def on(source: Path, place: str) -> Trainer:
    return Trainer(source, COSTS, 5, device=Device(place))


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_worker_equals_a_plain_loop_bit_for_bit(tmp_path: Path, programs: Path) -> None:
    source = programs / "perceptron.py"
    before = STATE.operations
    play(source, tmp_path / "run", NAME)
    assert STATE.operations - before > 1000
    assert_same(
        trained(tmp_path / "run"), module_at(programs.parent / "master" / "test_one_worker.py").plain_loop(source, 5)
    )


@pytest.mark.parametrize("name", ["perceptron", "every_field"])
def test_kills_and_faults_leave_what_they_leave_on_the_cpu(tmp_path: Path, programs: Path, name: str) -> None:
    """One program also has rows in which f counts, and mutable local fields."""
    script = Storms(Absent(ScriptedLives(4, Exponential(120.0), 5, grace_s=5.0, gap_s=2.0), 0.1), 900.0, 0.5)
    scenario = Scenario(script, COSTS, faults=FAULTS, crash_every_s=200.0, turn_s=0.2, limit_s=1e5, seed=5)
    ledgers = {
        place: play(programs / f"{name}.py", tmp_path / place[:3], place, workers=4, scenario=scenario)
        for place in ("cpu", NAME)
    }
    assert ledgers["cpu"] == ledgers[NAME]
    assert any("SIGKILL" in line for line in ledgers[NAME])
    assert_same(trained(tmp_path / "cpu"), trained(tmp_path / NAME[:3]))


def written(folder: Path, programs: Path, factory: str) -> Path:
    """The perceptron with another network."""
    text = (programs / "perceptron.py").read_text()
    begin, end = text.index("def perceptron()"), text.index("def points()")
    text = f"{text[:begin]}{factory}\n\n\n{text[end:]}"
    file = folder / "another.py"
    file.write_text(text)
    return file


SHORT = """
class Short(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4)).to(torch.{dtype})

    def forward(self, values):
        return self.layers(values.to(torch.{dtype})).float()


def perceptron() -> nn.Module:
    return Short()
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("place", ["cpu", NAME])
def test_what_trains_in_a_short_format_is_a_plain_loop_and_kept_in_float32(
    tmp_path: Path, programs: Path, place: str, dtype: str
) -> None:
    source = written(tmp_path, programs, SHORT.format(dtype=dtype))
    play(source, tmp_path / "run", place)
    found = trained(tmp_path / "run")
    assert {values.dtype for values in found.values()} == {np.dtype(np.float32)}
    assert_same(found, module_at(programs.parent / "master" / "test_one_worker.py").plain_loop(source, 5))


COMPILED = """
compiled = []


def counting(graph, inputs):
    compiled.append(graph)
    return graph.forward


def perceptron() -> nn.Module:
    layers = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))
    return torch.compile(layers, backend=counting)
"""


def test_what_is_compiled_is_compiled_once_a_life_and_keeps_its_names(tmp_path: Path, programs: Path) -> None:
    source = written(tmp_path, programs, COMPILED)
    expected = module_at(programs.parent / "master" / "test_one_worker.py").plain_loop(source, 5)
    play(source, tmp_path / "run", "cpu")
    assert_same(trained(tmp_path / "run"), expected)
    assert len(sys.modules["gridml_program_another"].compiled) <= 2  # once more for an epoch's last batch, of any size


def test_a_worker_whose_device_fails_says_so_and_its_machine_rests(tmp_path: Path, programs: Path) -> None:
    text = (programs / "perceptron.py").read_text()
    fails = "pretend_device.install(fails_after=900 if os.environ.get('GRIDML_SLOT') == '0' else None)"
    file = tmp_path / "failing.py"
    imports = "import os\n\nimport gridml\nfrom tests.support import pretend_device\n"
    file.write_text(text.replace("import gridml\n", f"{imports}\n{fails}\n", 1))
    reported: list[tuple[str, str]] = []
    environment = Environment(make, report=lambda topic, text, facts: reported.append((topic, text)))
    settings = Settings(file, workers=2, seed=5, epochs=8, steps_each=0, device="auto")
    with start(settings, tmp_path / "run", environment) as run:
        run.finish()
    assert verify_credits(tmp_path / "run").credited == 8000
    devices = [text for topic, text in reported if topic == "device"]
    assert devices and "DeviceFailedError: privateuseone:0 failed: CUDA error: an illegal memory access" in devices[0]
    assert not [text for topic, text in reported if topic == "failure"]  # no vertex is to blame
    assert any("its device failed; no worker there for 5 s" in text for topic, text in reported if topic == "avoided")


def test_a_program_is_tried_on_the_device_with_advice_if_memory_is_short(programs: Path) -> None:
    source = programs / "perceptron.py"
    assert try_out(source).device == NAME  # auto takes the available device
    assert try_out(source, device="cpu").device == "cpu"
    gc.collect()
    STATE.limit = STATE.used + 20_000
    with pytest.raises(DeviceFailedError, match=r"^privateuseone:0 out of memory: .* Give f a smaller batch") as failed:
        try_out(source, device="privateuseone:0")
    assert failed.value.exit_status == DEVICE
