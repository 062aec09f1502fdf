"""Each pair of docs/moving.md trains the same: what is written before, and the program that it becomes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from gridml.model.order import EpochOrder
from gridml.protocol import bundle
from master.backends.script import Script
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings
from master.views.report import report
from tests.docs.test_code_blocks import BLOCKS, save_files

PAGE = "docs/moving.md"
SEED = 3
BEFORE = [block for block in BLOCKS if block.page == PAGE and block.mark in ("runs", "script")]
AFTER = [block for block in BLOCKS if block.page == PAGE and block.mark == "program"]


class Trainer:
    """The part of Lightning's Trainer that the page uses, which is not installed here."""

    def __init__(self, max_epochs: int, gradient_clip_val: float, accumulate_grad_batches: int) -> None:
        self._epochs, self._clip_norm, self._each = max_epochs, gradient_clip_val, accumulate_grad_batches

    def fit(self, model: Any, loader: DataLoader[Any], held_out: DataLoader[Any]) -> None:
        self.model = model
        optimiser = model.configure_optimizers()
        for _ in range(self._epochs):
            for at, batch in enumerate(loader):
                (model.training_step(batch, at) / self._each).backward()
                if (at + 1) % self._each == 0 or at + 1 == len(loader):
                    torch.nn.utils.clip_grad_norm_(model.parameters(), self._clip_norm)
                    optimiser.step()
                    optimiser.zero_grad()
        with torch.no_grad():
            for at, batch in enumerate(held_out):
                model.validation_step(batch, at)


class LightningModule(torch.nn.Module):
    def log(self, name: str, value: torch.Tensor) -> None:
        self.logged = {**getattr(self, "logged", {}), name: value.item()}


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the page's files. The loops shuffle as a run with this seed, and use one thread, like workers."""
    save_files(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GRIDML_CACHE", str(tmp_path / "cache"))
    lightning = ModuleType("lightning")
    vars(lightning).update(LightningModule=LightningModule, Trainer=Trainer)
    monkeypatch.setitem(sys.modules, "lightning", lightning)
    epochs = count()

    def in_its_order(vertices: int) -> torch.Tensor:
        return torch.from_numpy(EpochOrder(vertices, SEED, next(epochs), "all").vertices(0, vertices))

    monkeypatch.setattr(torch, "randperm", in_its_order)
    monkeypatch.setattr(RandomSampler, "__iter__", lambda self: iter(in_its_order(self.num_samples).tolist()))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


def before(number: int) -> dict[str, Any]:
    """Run what is written before, and return its names."""
    torch.manual_seed(SEED)
    names: dict[str, Any] = {"__name__": "page"}
    # The norm is summed group by group in a program, which rounds otherwise.
    by_group = "[p for group in optimiser.param_groups for p in group['params']], 1.0"
    code = BEFORE[number].code.replace("model.parameters(), 1.0", by_group)
    exec(compile(code, f"{PAGE}:{BEFORE[number].line}", "exec"), names)
    return names


def after(number: int, folder: Path, environment: Environment) -> tuple[dict[str, np.ndarray], float]:
    """Return (the weights that one worker trains, the accuracy that the report has last)."""
    program = folder / AFTER[number].note
    program.write_text(AFTER[number].code)
    with start(Settings(program, workers=1, seed=SEED), folder / "run", environment) as run:
        run.finish()
    _, trained = bundle.decode((folder / "run" / "final.safetensors").read_bytes())
    return trained, report(folder / "run").epochs[-1].metrics["accuracy"]


def test_the_page_has_three_pairs() -> None:
    assert (len(BEFORE), len(AFTER)) == (3, 3)


@pytest.mark.real
@pytest.mark.parametrize("number", [0, 1])
def test_the_loop_and_lightning_are_moved_bit_for_bit(
    number: int, prepared: Path, pool: Callable[[Script | None], Environment]
) -> None:
    names = before(number)
    model = names["trainer"].model if "trainer" in names else names["model"]
    trained, accuracy = after(number, prepared, pool(None))
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(trained[f"Network/0/model/{name}"], tensor.numpy(), err_msg=name)
    assert accuracy == (model.logged["accuracy"] if "trainer" in names else names["accuracy"])


@pytest.mark.real
def test_the_dataloader_is_moved_with_its_accuracy(
    prepared: Path, pool: Callable[[Script | None], Environment]
) -> None:
    """Its random shifts are others, so the weights differ."""
    _, accuracy = after(2, prepared, pool(None))
    assert accuracy == pytest.approx(before(2)["accuracy"], abs=0.05)
