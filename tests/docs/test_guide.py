"""The guide's program trains exactly like the guide's loop, both taken from the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gridml
from gridml.engine.pace import used_settings
from gridml.model.loading import load
from gridml.model.order import EpochOrder
from gridml.protocol import bundle
from master.backends.script import Script
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings
from master.views.report import report

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide.md").read_text("utf-8")
SEED = 3


def block(mark: str) -> str:
    """Return the first block of Python below a mark."""
    found = re.search(rf"^<!-- {mark}[\w. ]* -->\n```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert found is not None, mark
    return found[1]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "arcs.py"
    file.write_text(block("program"))
    return file


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread, like workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.real
def test_one_worker_makes_of_the_program_what_the_loop_makes_bit_for_bit(
    program: Path,
    tmp_path: Path,
    pool: Callable[[Script | None], Environment],
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "run"
    with start(Settings(program, workers=1, seed=SEED), root, pool(None)) as run:
        run.finish()
    _, trained = bundle.decode((root / "final.safetensors").read_bytes())

    epochs = count()

    def in_its_order(vertices: int) -> torch.Tensor:
        return torch.from_numpy(EpochOrder(vertices, SEED, next(epochs), "all").vertices(0, vertices))

    monkeypatch.setattr(torch, "randperm", in_its_order)  # the only changes to the page's loop are this and the seed
    torch.manual_seed(SEED)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block("runs"), "guide.md", "exec"), names)
    assert next(epochs) == load(program).epochs
    for name, tensor in names["model"].state_dict().items():
        np.testing.assert_array_equal(trained[f"Network/0/model/{name}"], tensor.detach().numpy(), err_msg=name)
    assert report(root).epochs[-1].metrics["accuracy"] == names["accuracy"]


def test_the_line_that_the_page_shows_is_the_one_that_a_run_begins_with(program: Path) -> None:
    _, text = used_settings(load(program), 4, adds=True)
    assert f"\ntraining  {text}\n" in PAGE


def test_the_batches_and_rates_that_the_page_names_are_those_that_are_used(program: Path) -> None:
    settings = load(program)
    for workers, said in (
        (2, "each of two workers uses batches of 16 at a rate of 0.141"),
        (4, "each of four workers batches of 8 at 0.1"),
    ):
        used, _ = used_settings(settings, workers)
        assert said in PAGE and f"{used.batch}" in said and f"{0.2 * used.rate_factor:.3g}" in said
    with_its_own = program.read_text().replace("@gridml.update(batch=32)", "@gridml.update(batch=32, min_batch=32)")
    program.write_text(with_its_own)
    used, _ = used_settings(load(program), 4)
    assert "`@gridml.update(batch=32, min_batch=32)`" in PAGE and (used.batch, used.rate_factor) == (32, 1.0)


def test_the_default_schedule_falls_as_the_page_says() -> None:
    assert "falls linearly to 0 over the last 40% of the run" in PAGE
    shares = [0.0, 0.6, 0.8, 1.0]
    assert [gridml.linear_decay(share) for share in shares] == pytest.approx([1.0, 1.0, 0.5, 0.0])
