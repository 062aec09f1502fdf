"""One worker that is never killed is exactly plain SGD: the same weights, bit for bit, however often it pushes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from gridml.engine.rng_state import RngState
from gridml.model.loading import load
from gridml.model.order import EpochOrder
from gridml.model.program import Program
from gridml.model.schedule import linear_decay
from gridml.protocol import bundle
from master.backends.script import Script
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings
from master.views.report import report
from tests.support.in_ledger import credits_of

pytestmark = pytest.mark.real


class Parts(NamedTuple):
    """The parts of a loop without gridml."""

    program: Program
    model: Any  #: as its factory makes it with the run's seed
    optimiser: Any  #: as the program makes it
    values: torch.Tensor  #: of all points
    label: torch.Tensor


@contextmanager
def parts(program_file: Path, seed: int = 5) -> Iterator[Parts]:
    """Yield the parts of a program's loop, while torch computes on one thread, as a worker does."""
    program = load(program_file)
    table, kind = program.graph().tables["Point"], program.types()["Network"].modules["model"]
    values, label = torch.from_numpy(table.columns["values"]), torch.from_numpy(table.columns["label"])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(seed)
        model = kind.factory()
        assert kind.optimiser is not None
        yield Parts(program, model, kind.optimiser(model.parameters()), values, label)
    finally:
        torch.set_num_threads(threads)


def trained_alone(
    source: Path, root: Path, environment: Environment, **sizes: int | None
) -> tuple[Mapping[str, np.ndarray], int]:
    """Train a program with one worker; return (the tensors at the end, the number of credited pushes)."""
    run = start(Settings(source, workers=1, seed=5, **sizes), root, environment)  # type: ignore[arg-type]
    with run:
        run.finish()
        pushes = sum(1 for _ in credits_of(run.ledger))
    return bundle.decode((root / "final.safetensors").read_bytes())[1], pushes


def check_equal(trained: Mapping[str, np.ndarray], model: torch.nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(trained[f"Network/0/model/{name}"], tensor.detach().numpy(), err_msg=name)


def plain_loop(program_file: Path, seed: int) -> dict[str, np.ndarray]:
    """Train in a plain loop without gridml, with the same order of vertices and the same learning rates."""
    with parts(program_file, seed) as (program, model, optimiser, points, label):
        count, batch = len(points), program.shape.batch
        assert batch is not None
        rate = optimiser.param_groups[0]["lr"]
        done = 0
        for epoch in range(program.epochs):
            order = EpochOrder(count, seed, epoch, "all").vertices(0, count)
            for at in range(0, count - count % batch if program.shape.drop_last else count, batch):
                rows = order[at : at + batch]
                optimiser.param_groups[0]["lr"] = rate * linear_decay(done / (count * program.epochs))
                loss = torch.nn.functional.cross_entropy(model(points[rows]), label[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                done += len(rows) if at + 2 * batch <= count or not program.shape.drop_last else count - at
        short = (torch.bfloat16, torch.float16)  # the master's copy is in float32
        values = {name: t.float() if t.dtype in short else t for name, t in model.state_dict().items()}
        return {f"Network/0/model/{name.replace('_orig_mod.', '')}": t.detach().numpy() for name, t in values.items()}


@pytest.mark.parametrize(("chunk", "push_every"), [(None, None), (96, 32), (320, 64), (256, 10_000)])
def test_one_worker_equals_a_plain_loop_bit_for_bit(
    tmp_path: Path,
    programs: Path,
    pool: Callable[[Script | None], Environment],
    chunk: int | None,
    push_every: int | None,
) -> None:
    source = programs / "perceptron.py"
    trained, pushes = trained_alone(source, tmp_path / "run", pool(None), chunk=chunk, push_every=push_every)
    expected = plain_loop(source, seed=5)
    assert trained.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(trained[name], values, err_msg=name)
    assert pushes >= 3  # at least one per epoch went through the whole exchange
    if push_every == 32:
        assert pushes > 20  # one is sent when the one before has been answered


HABITS = """
def lone_batches(at: gridml.Progress) -> None:
    assert 0 <= at.step < at.steps == STEPS and at.version >= 0, at


@gridml.update(batch=BATCH, accumulate=ACCUMULATE)
def train(points: gridml.Batch[Point], at: gridml.Progress, network: Network) -> None:
    lone_batches(at)
    network.step(loss_of(network.model, points.values, points.label), clip_norm=0.3)
"""
ONE_CYCLE = "gridml.torch_schedule(lambda o, steps: torch.optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=steps))"


@pytest.mark.parametrize("accumulate", [1, 3])
def test_with_adamw_clipping_one_cycle_and_accumulation_it_equals_a_loop_bit_for_bit(
    tmp_path: Path, programs: Path, pool: Callable[[Script | None], Environment], accumulate: int
) -> None:
    count, batch, epochs = 1000, 32, 3
    steps = epochs * -(-count // (batch * accumulate))
    text = (programs / "perceptron.py").read_text()
    start_of_f, end_of_f = text.index("@gridml.update"), text.index("def graph()")
    habits = HABITS.replace("ACCUMULATE", str(accumulate)).replace("STEPS", str(steps))
    text = text[:start_of_f] + habits.strip() + "\n\n\n" + text[end_of_f:]
    text = text.replace("torch.optim.SGD, lr=0.05, momentum=0.9", "torch.optim.AdamW, lr=0.01")
    source = tmp_path / "habits.py"
    source.write_text(text.replace("epochs=EPOCHS", f"epochs=EPOCHS, schedule={ONE_CYCLE}"))
    trained, pushes = trained_alone(source, tmp_path / "run", pool(None), chunk=200)
    assert pushes >= 12  # one at the end of each chunk, at least
    with parts(source) as (_, model, optimiser, values, label):
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.02, total_steps=steps)
        for epoch in range(epochs):
            batches = torch.from_numpy(EpochOrder(count, 5, epoch, "all").vertices(0, count)).split(batch)
            for k, rows in enumerate(batches):
                (torch.nn.functional.cross_entropy(model(values[rows]), label[rows]) / accumulate).backward()
                if (k + 1) % accumulate == 0 or k + 1 == len(batches):
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                    optimiser.step()
                    scheduler.step()
                    optimiser.zero_grad()
    check_equal(trained, model)


CLOSURE = """
    def closure() -> torch.Tensor:
        network.optimiser.zero_grad()
        loss = loss_of(network.model, points.values, points.label)
        loss.backward()
        return loss

    network.optimiser.step(closure)
"""
LBFGS = "torch.optim.LBFGS, lr=0.1, max_iter=4"


def test_with_lbfgs_and_its_closure_it_equals_a_loop_bit_for_bit(
    tmp_path: Path, programs: Path, pool: Callable[[Script | None], Environment]
) -> None:
    """Its curvature pairs outlive pushes and ends of chunks."""
    text, source = (programs / "perceptron.py").read_text(), tmp_path / "closure.py"
    text = text.replace("    network.step(loss_of(network.model, points.values, points.label))\n", CLOSURE)
    text = text.replace("torch.optim.SGD, lr=0.05, momentum=0.9", LBFGS).replace("        nn.BatchNorm1d(32),\n", "")
    text = text.replace("nn.BatchNorm1d(32), ", "")
    source.write_text(text.replace("epochs=EPOCHS", "epochs=EPOCHS, schedule=gridml.constant"))
    trained, pushes = trained_alone(source, tmp_path / "run", pool(None), chunk=224, push_every=64)
    assert pushes >= 12
    with parts(source) as (program, model, optimiser, values, label):
        for epoch in range(program.epochs):
            for rows in torch.from_numpy(EpochOrder(len(values), 5, epoch, "all").vertices(0, len(values))).split(32):

                def closure(rows: torch.Tensor = rows) -> torch.Tensor:
                    optimiser.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(values[rows]), label[rows])
                    loss.backward()
                    return loss

                optimiser.step(closure)
    check_equal(trained, model)


def test_with_drop_last_it_equals_a_loop_that_drops_it_and_all_is_credited(
    tmp_path: Path, programs: Path, pool: Callable[[Script | None], Environment]
) -> None:
    source = tmp_path / "dropping.py"
    text = (programs / "perceptron.py").read_text()
    source.write_text(text.replace("batch=BATCH", "batch=BATCH, drop_last=True").replace("1000, 32, 3", "1000, 37, 3"))
    run = start(Settings(source, workers=1, seed=5, chunk=111), tmp_path / "run", pool(None))
    with run:
        run.finish()
        assert run.ledger.count_credits().vertices == 3 * 1000
    _, trained = bundle.decode((tmp_path / "run" / "final.safetensors").read_bytes())
    for name, values in plain_loop(source, seed=5).items():
        np.testing.assert_array_equal(trained[name], values, err_msg=name)


def test_f_draws_from_every_global_generator_what_the_seed_says(
    tmp_path: Path, programs: Path, pool: Callable[[Script | None], Environment]
) -> None:
    text = (programs / "logs.py").read_text().replace("import numpy as np", "import random\n\nimport numpy as np")
    source = tmp_path / "draws.py"
    source.write_text(text.replace("number=items.number.mean()", "own=random.random(), numpys=np.random.random()"))
    run = start(Settings(source, workers=1, seed=5), tmp_path / "run", pool(None))
    with run:
        run.finish()
    rng = RngState("5/w1", torch=False)
    rng.swap()
    own, numpys = zip(*[(random.random(), np.random.random()) for _ in range(400 // 10)], strict=True)
    rng.swap()
    logged = report(tmp_path / "run").epochs[0].logged
    assert (logged["own"], logged["numpys"]) == pytest.approx((np.mean(own), np.mean(numpys)))
