"""Replicas of a run as state dicts, and runs that begin from them."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import gridml
from gridml.errors import LedgerError, RunError, UsageError
from gridml.model.layers import plain as plain_name
from master.store.rundir import RunDirectory

PROGRAMS = Path(__file__).parents[2] / "programs"
COSTS = "t_x=0.01,t_s=1,push=0.1"


@pytest.fixture(scope="module")
def tied() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("tied_as_imported", PROGRAMS / "tied.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def trained(tied: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> gridml.Run:
    root = tmp_path_factory.mktemp("trained") / "run"
    return gridml.simulate(tied.program, workers=2, cost=COSTS, push_every=8, run_dir=root)


def norm(state: dict[str, torch.Tensor]) -> float:
    return float(state["first.weight"].norm())


def test_the_trained_replica_loads_strictly(trained: gridml.Run, tied: ModuleType) -> None:
    model = tied.Tied()
    state = gridml.load(trained)["Network.model"]
    assert list(state) == list(model.state_dict())
    model.load_state_dict(state, strict=True)
    assert model.last.weight is model.first.weight
    assert norm(model.state_dict()) == pytest.approx(trained.metrics()[-1]["norm"], rel=1e-6)


TIED_AGAIN = "Network/0/model/last.weight"  # the same tensor as first.weight
COMPILED = 'lambda: torch.compile(Tied(), backend="eager")'


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, where it is compiled
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_what_was_trained_compiled_or_not_loads_strictly_and_the_other_begins_with_it(
    tied: ModuleType, tmp_path: Path, begin: Any, compiled: bool
) -> None:
    """The names are those of what the factory makes, as torch.save of it would write them."""
    plain, other = (PROGRAMS / "tied.py").read_text(), tmp_path / "other.py"
    assert plain.count("module(Tied,") == 1
    (tmp_path / "own.py").write_text(plain.replace("module(Tied,", f"module({COMPILED},") if compiled else plain)
    other.write_text(plain if compiled else plain.replace("module(Tied,", f"module({COMPILED},"))
    run = gridml.simulate(tmp_path / "own.py", workers=1, cost=COSTS, run_dir=tmp_path / "run", display="none")
    state = gridml.load(run)["Network.model"]
    module = torch.compile(tied.Tied()) if compiled else tied.Tied()
    module.load_state_dict(state, strict=True)
    assert all(name.startswith("_orig_mod.") is compiled for name in state)
    saved = tmp_path / "module.pt"
    torch.save(module.state_dict(), saved)
    begun = begin(str(saved), program=other)
    assert begun.keys() == {f"Network/0/model/{plain_name(name)}" for name in state} - {TIED_AGAIN}
    for name, tensor in state.items():
        np.testing.assert_array_equal(begun.get(f"Network/0/model/{plain_name(name)}", tensor), tensor)


def test_the_best_and_a_version(trained: gridml.Run, tied: ModuleType) -> None:
    norms = [each["norm"] for each in trained.metrics()]
    assert len(norms) == tied.EPOCHS
    assert norm(trained.load("best")["Network.model"]) == pytest.approx(min(norms), rel=1e-6)
    assert norm(trained.load("e1")["Network.model"]) == pytest.approx(norms[0], rel=1e-6)
    versions = [point["version"] for point in [event.facts for event in trained.events("epoch")]]
    assert norm(trained.load(versions[0])["Network.model"]) == pytest.approx(norms[0], rel=1e-6)
    with pytest.raises(UsageError, match=r"which is 'v12345'; expected final, best, the end of an epoch"):
        trained.load(12345)


def test_the_text_of_a_run_may_say_which_replica(trained: gridml.Run) -> None:
    norms = [each["norm"] for each in trained.metrics()]
    version = next(event.facts["version"] for event in trained.events("epoch"))
    root = str(trained.run_dir)
    expected = {"final": norms[-1], "best": min(norms), "e1": norms[0], f"v{version}": norms[0], f"{version}": norms[0]}
    for which, value in expected.items():
        assert norm(gridml.load(f"{root}:{which}")["Network.model"]) == pytest.approx(value, rel=1e-6)
    assert norm(gridml.load(Path(f"{root}:e1"))["Network.model"]) == pytest.approx(norms[0], rel=1e-6)
    for none in ("bets", "v12345", ""):
        with pytest.raises(UsageError, match=f"which is '{none}'; expected final, best, the end of an epoch"):
            gridml.load(f"{root}:{none}")
    with pytest.raises(UsageError, match=r"run:best' and which='e1'; expected only one of the two"):
        gridml.load(f"{root}:best", "e1")
    with pytest.raises(LedgerError, match="nowhere:best is not a run"):
        gridml.load(trained.run_dir.with_name("nowhere:best"))


def test_a_directory_with_a_colon_in_its_name_is_that_directory(trained: gridml.Run) -> None:
    other = trained.run_dir.with_name("run:best")
    other.symlink_to(trained.run_dir)
    try:
        expected = trained.metrics()[-1]["norm"]
        assert norm(gridml.load(other)["Network.model"]) == pytest.approx(expected, rel=1e-6)
    finally:
        other.unlink()


def test_loading_changes_nothing_of_the_process(trained: gridml.Run) -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    before = [*sys.path], [*sys.meta_path], torch.get_num_threads()
    gridml.load(trained)
    assert (sys.path, sys.meta_path, torch.get_num_threads()) == before
    assert torch.equal(torch.rand(1), expected)


def test_a_file_that_is_not_what_the_ledger_says(tied: ModuleType, tmp_path: Path) -> None:
    run = gridml.simulate(tied.program, workers=1, cost=COSTS, run_dir=tmp_path / "run")
    for file, which in ((RunDirectory(run.run_dir).final, "final"), (RunDirectory(run.run_dir).best, "best")):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        with pytest.raises(LedgerError, match="SHA-256 is not the one in the ledger"):
            run.load(which)
    RunDirectory(run.run_dir).final.unlink()
    with pytest.raises(RunError, match="has no trained replica yet"):
        run.load()


def test_nothing_was_kept_as_the_best(tmp_path: Path) -> None:
    run = gridml.simulate(PROGRAMS / "tally.py", workers=1, cost=COSTS, run_dir=tmp_path / "run")
    with pytest.raises(LedgerError, match="has kept no best replica"):
        run.load("best")


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is not a run"):
        gridml.load(tmp_path)


@pytest.fixture
def begin(tied: ModuleType, tmp_path: Path) -> Any:
    """Start a run without training it, and return its initial replica by name."""
    from master.launch import create
    from master.ports.environment import Environment
    from master.store.settings import Settings
    from master.store.versions import Versions

    def call(init_from: str | None, *, partial: bool = False, program: Path = PROGRAMS / "tied.py") -> dict[str, Any]:
        root = tmp_path / f"begun-{len(list(tmp_path.iterdir()))}"
        settings = Settings(program, init_from=init_from, init_partial=partial)
        create(settings, root, Environment(lambda *_: pytest.fail("no worker is wanted"), durable=False))
        return dict(Versions(RunDirectory(root).versions).read(0, None).tensors())

    return call


def test_a_run_begins_with_another_ones_replica(begin: Any, trained: gridml.Run) -> None:
    own, final, best = begin(None), begin(str(trained.run_dir)), begin(f"{trained.run_dir}:best")
    expected = trained.load()["Network.model"]
    assert set(own) == set(final) and "Network/0/model/last.weight" not in own
    for name, tensor in final.items():
        assert torch.equal(torch.from_numpy(tensor), expected[name.removeprefix("Network/0/model/")])
    assert not (own["Network/0/model/first.weight"] == final["Network/0/model/first.weight"]).all()
    chosen = trained.load("best")["Network.model"]["first.weight"]
    assert torch.equal(torch.from_numpy(best["Network/0/model/first.weight"]), chosen)


@pytest.mark.parametrize("ending", [".pt", ".pth", ".safetensors"])
def test_a_run_begins_with_a_file_of_a_state_dict(begin: Any, tied: ModuleType, tmp_path: Path, ending: str) -> None:
    model, file = tied.Tied(), tmp_path / f"weights{ending}"
    if ending != ".safetensors":  # before torch 1.6, a .pth was no zip
        torch.save(model.state_dict(), file, _use_new_zipfile_serialization=ending == ".pt")
    else:
        from safetensors.torch import save_model

        save_model(model, str(file))  # it omits one of the tied names
    begun = begin(str(file))
    assert torch.equal(torch.from_numpy(begun["Network/0/model/first.weight"]), model.first.weight)
    assert torch.equal(torch.from_numpy(begun["Network/0/model/last.bias"]), model.last.bias)


def test_tensors_that_do_not_fit_are_reported_and_skipped_on_request(
    begin: Any, tied: ModuleType, tmp_path: Path
) -> None:
    state, file = tied.Tied().state_dict(), tmp_path / "weights.pt"
    del state["norm.running_var"]
    state["last.bias"], state["head.bias"] = torch.zeros(7), torch.zeros(2)
    torch.save(state, file)
    with pytest.raises(UsageError) as refused:
        begin(str(file))
    said = str(refused.value)
    assert "last.bias is (7,) there, and (4,) here" in said
    assert "head.bias (2,) is none of the program's" in said
    assert "Network/0/model/norm.running_var (4,) is not there" in said and "--init-partial" in said
    own, begun = begin(None), begin(str(file), partial=True)
    assert torch.equal(torch.from_numpy(begun["Network/0/model/first.weight"]), state["first.weight"])
    assert (begun["Network/0/model/last.bias"] == own["Network/0/model/last.bias"]).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere", "which does not exist; expected a run's directory"),
        ("broken.pt", "which cannot be read"),
        ("whole.pt", "which holds other objects than tensors, such as a whole module"),
        ("whole.pth", "which holds other objects than tensors, such as a whole module"),
        ("plain.pkl", "which holds other objects than tensors, such as a whole module"),
        ("other.pt", "which holds no state dict but"),
        ("nan.pt", "holds NaN or infinity"),
        ("foreign.pt", "none of its tensors fits"),
    ],
)
def test_what_no_run_can_begin_with(
    begin: Any, tied: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.pt").write_bytes(b"PK\x03\x04 no weights")
    torch.save(torch.nn.Linear(2, 3), "whole.pt")
    torch.save(torch.nn.Linear(2, 3), "whole.pth", _use_new_zipfile_serialization=False)
    Path("plain.pkl").write_bytes(pickle.dumps({"a": Path("x")}))
    torch.save({"epoch": 3, "model": {}}, "other.pt")
    state = tied.Tied().state_dict()
    torch.save({**state, "last.bias": torch.full((4,), torch.nan)}, "nan.pt")
    torch.save({"foreign": torch.zeros(3)}, "foreign.pt")
    with pytest.raises(UsageError) as refused:
        begin(text, partial=text == "foreign.pt")
    assert said in str(refused.value)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("begun")]
