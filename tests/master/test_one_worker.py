"""One worker that is never killed must be exactly plain SGD: same weights, bit for bit, however often it pushes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gridml.model.order import EpochOrder
from gridml.model.program import linear_decay, load
from gridml.protocol import bundle
from master.backends.script import Script
from master.environment import Environment
from master.launch import start
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
        return {f"Network/0/model/{name}": t.detach().numpy() for name, t in model.state_dict().items()}
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
