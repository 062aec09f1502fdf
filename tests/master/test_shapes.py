"""One worker equals a plain loop bit for bit, for any shapes, and however its chunks are cut."""

from __future__ import annotations

import json
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gridml
from gridml.engine.pace import next_batch
from gridml.model.order import EpochOrder
from gridml.model.schedule import linear_decay
from master.backends.script import Script
from master.launch import start
from master.ports.environment import Environment
from master.store.settings import Settings

SEED, CASES = 5, 24
OPTIMISERS = (
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("Adam", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "amsgrad": True}),
)
FLOATS = ("float32", "float32", "float64", "float16", "uint8", "int64")


def drawn(case: int) -> dict[str, Any]:
    """Settings of `programs/shapes.py`."""
    rng = random.Random(case)
    optimiser, options = OPTIMISERS[rng.randrange(len(OPTIMISERS))]
    batch = rng.randint(1, 40)
    model = rng.choice(("linear", "linear", "norm", "conv", "lstm", "attention", "embedding"))
    field = rng.choice(("array", "array", "mutable", "ragged", "shared", "one"))
    least = rng.randint(1, batch)
    if model == "norm":
        batch, least, field = max(2, batch), max(2, least), "array"
    dtype = "float32" if field == "mutable" else rng.choice(FLOATS)
    return {
        "model": model,
        "width": rng.randint(1, 40),
        "dtype": "int64" if model == "embedding" and field != "mutable" else dtype,
        "rows": rng.randint(max(2, least), 90),
        "batch": 1 if field == "one" else batch,
        "least": 1 if field == "one" else least,
        "field": field,
        "optimiser": optimiser,
        "options": options,
        "epochs": rng.randint(2, 3),
        "hidden": rng.randint(1, 20),
        "accumulate": 1 if field == "one" else rng.choice((1, 1, 2)),
    }


def shown(width: int) -> dict[str, Any]:
    """Settings for which kernels are known to round differently depending on where a batch begins."""
    return drawn(0) | {
        "model": "linear",
        "width": width,
        "hidden": 8,
        "dtype": "float32",
        "rows": 100,
        "batch": 16,
        "least": 1,
        "field": "array",
        "optimiser": "SGD",
        "options": {"lr": 0.1},
        "accumulate": 1,
    }


def written(folder: Path, programs: Path, settings: dict[str, Any]) -> Path:
    text = (programs / "shapes.py").read_text()
    begin, end = text.index("SETTINGS = "), text.index("WIDTH, HIDDEN")
    source = folder / "shapes.py"
    source.write_text(
        f"{text[:begin]}SETTINGS = {settings!r}\n{text[end:]}".replace('"shared.npy"', f'"{folder}/x.npy"')
    )
    return source


def plain_loop(source: Path, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Train in a plain loop without gridml, with the same order of vertices and the same learning rates."""
    module = runpy.run_path(str(source))
    x, y = (torch.from_numpy(values) for values in module["data"]())
    count, least, accumulate = len(x), settings["least"], settings["accumulate"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = module["network"]()
    optimiser = getattr(torch.optim, settings["optimiser"])(model.parameters(), **settings["options"])
    rate, done = optimiser.param_groups[0]["lr"], 0
    for epoch in range(settings["epochs"]):
        order = torch.from_numpy(EpochOrder(count, SEED, epoch, "all").vertices(0, count).astype(np.int64))
        at = batches = 0
        while at < count:
            rows = order[at : at + next_batch(count - at, settings["batch"], least, alike=False)]
            optimiser.param_groups[0]["lr"] = rate * linear_decay(done / (count * settings["epochs"]))
            (module["loss_of"](model, x[rows], y[rows]) / accumulate).backward()
            at, done, batches = at + len(rows), done + len(rows), batches + 1
            if batches % accumulate == 0 or at == count:
                optimiser.step()
                optimiser.zero_grad()
            if settings["field"] == "mutable":
                x[rows] = x[rows] * 0.5
    torch.set_num_threads(threads)
    return dict(model.state_dict())


def assert_same(run: Any, expected: dict[str, torch.Tensor], settings: dict[str, Any]) -> None:
    got = gridml.load(run)["Network.model"]
    assert got.keys() == expected.keys()
    wrong = {
        name: float((got[name].double() - tensor.double()).abs().max())
        for name, tensor in expected.items()
        if not torch.equal(got[name], tensor)
    }
    assert not wrong, json.dumps(settings)


def assert_simulated_same(folder: Path, programs: Path, settings: dict[str, Any], rng: random.Random) -> None:
    source = written(folder, programs, settings)
    expected = plain_loop(source, settings)
    chunks = (None, rng.randint(1, settings["rows"]), rng.randint(1, 2 * settings["rows"]))
    for number, chunk in enumerate(chunks):
        push_every, root = rng.choice((None, rng.randint(1, 60))), folder / f"run{number}"
        cost = "t_x=0.01,boot=1"
        run = gridml.simulate(source, workers=1, cost=cost, seed=SEED, chunk=chunk, push_every=push_every, run_dir=root)
        assert_same(run, expected, settings | {"chunk": chunk, "push_every": push_every})


@pytest.mark.parametrize("case", range(CASES))
def test_in_simulation(case: int, tmp_path: Path, programs: Path) -> None:
    assert_simulated_same(tmp_path, programs, drawn(case), random.Random(-case))


@pytest.mark.parametrize("width", [5, 6, 7, 8, 13])
def test_shapes_that_rounded_otherwise(width: int, tmp_path: Path, programs: Path) -> None:
    assert_simulated_same(tmp_path, programs, shown(width), random.Random(width))


@pytest.mark.real
@pytest.mark.parametrize(
    ("width", "chunk", "push_every"), [(8, None, None), (7, 31, 9), (6, 50, None), (13, 17, 1_000)]
)
def test_with_a_real_worker(
    width: int,
    chunk: int | None,
    push_every: int | None,
    tmp_path: Path,
    programs: Path,
    pool: Callable[[Script | None], Environment],
) -> None:
    settings = shown(width)
    source = written(tmp_path, programs, settings)
    run = start(
        Settings(source, workers=1, seed=SEED, chunk=chunk, push_every=push_every), tmp_path / "run", pool(None)
    )
    with run:
        run.finish()
    assert_same(tmp_path / "run", plain_loop(source, settings), settings)
