"""One worker that is never killed must be exactly plain SGD: same weights, bit for bit, however often it pushes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gridml.model.loading import load
from gridml.model.order import EpochOrder
from gridml.model.schedule import linear_decay
from gridml.protocol import bundle
from master.backends.script import Script
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings

pytestmark = pytest.mark.real


def plain_loop(program_file: Path, seed: int) -> dict[str, np.ndarray]:
    """What a user would write without gridml, over the same order of vertices and the same learning rates."""
    program = load(program_file)
    table = program.graph().tables["Point"]
    count, batch = table.count, program.update.batch
    assert batch is not None
    kind = program.types()["Network"].modules["model"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(seed)
        model = kind.factory()
        assert kind.optimiser is not None
        optimiser = kind.optimiser(model.parameters())
        rate = optimiser.param_groups[0]["lr"]
        done = 0
        for epoch in range(program.epochs):
            order = EpochOrder(count, seed, epoch, "all").vertices(0, count)
            for at in range(0, count - count % batch if program.update.drop_last else count, batch):
                rows = order[at : at + batch]
                optimiser.param_groups[0]["lr"] = rate * linear_decay(done / (count * program.epochs))
                scores = model(torch.from_numpy(table.columns["values"][rows]))
                loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(table.columns["label"][rows]))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                done += len(rows) if at + 2 * batch <= count or not program.update.drop_last else count - at
        short = (torch.bfloat16, torch.float16)  # the master's copy is in float32
        values = {name: t.float() if t.dtype in short else t for name, t in model.state_dict().items()}
        return {f"Network/0/model/{name.replace('_orig_mod.', '')}": t.detach().numpy() for name, t in values.items()}
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("chunk", "push_every"), [(None, None), (96, 32), (320, 64), (256, 10_000)])
def test_one_worker_equals_a_plain_loop_bit_for_bit(
    tmp_path: Path,
    programs: Path,
    pool: Callable[[Script | None], Environment],
    chunk: int | None,
    push_every: int | None,
) -> None:
    source = programs / "perceptron.py"
    settings = Settings(program=source, workers=1, seed=5, chunk=chunk, push_every=push_every)
    run = start(settings, tmp_path / "run", pool(None))
    with run:
        run.finish()
        pushes = sum(1 for _ in run.ledger.credits())
    _, trained = bundle.decode((tmp_path / "run" / "final.safetensors").read_bytes())
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
    run = start(Settings(source, workers=1, seed=5, chunk=200), tmp_path / "run", pool(None))
    with run:
        run.finish()
        pushes = sum(1 for _ in run.ledger.credits())
    assert pushes >= 12  # one at the end of each chunk, at least
    _, trained = bundle.decode((tmp_path / "run" / "final.safetensors").read_bytes())

    program = load(source)
    table, module = program.graph().tables["Point"], program.types()["Network"].modules["model"]
    values, label = torch.from_numpy(table.columns["values"]), torch.from_numpy(table.columns["label"])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = module.factory()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
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
    torch.set_num_threads(threads)
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(trained[f"Network/0/model/{name}"], tensor.detach().numpy(), err_msg=name)


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
