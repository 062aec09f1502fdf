"""Programs around one stage, for tests of the compiler of stages."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.kernel import Kernel, kernel_of
from gridml.engine.engine import Engine
from gridml.model.loading import load
from gridml.model.phases import Stages
from gridml.model.program import Program
from gridml.model.stages import ApplyStage, ExchangeStage
from master.evaluation.metrics import first_chunk
from master.store.versions import initial

TYPES = '''"""A program of the tests."""

import math
from math import exp

import numpy as np

import gridml
from gridml import counters

SIZE, HALF, TABLE, NAME = 3, 0.5, np.arange(3.0), "name"


class At(gridml.Vertex):
    rate = gridml.array("float32")
    steps = gridml.array("float32", (SIZE,))
    total = gridml.accumulator("float64")
    by_size = gridml.accumulator("int64", (SIZE,))
    worst = gridml.accumulator("float32", by="max")
    hold = gridml.scratch("float32", (SIZE,))
    mine = gridml.counter(SIZE)
    aggregate = gridml.by_name({"*/count": gridml.add(), "*": gridml.owned()})
    count = gridml.array("int32", (SIZE,))


class Item(gridml.Vertex):
    q = gridml.array("float32", (SIZE,))
    aggregate = gridml.stale_mean()
    share = gridml.derived("float32", (SIZE,))


class Word(gridml.Vertex):
    count = gridml.array("int32", (2, SIZE))
    aggregate = gridml.add()


class User(gridml.Vertex):
    p = gridml.array("float32", (SIZE,), mutable=True)
    bias = gridml.array("float32", mutable=True)
    age = gridml.array("int64")
    rated = gridml.edge(Item, weight="float32")
    said = gridml.edge(Word)


def graph() -> gridml.Graph:
    rng, g = np.random.default_rng(0), gridml.Graph()
    g.add(At, rate=0.1, steps=rng.normal(size=(1, SIZE)), count=np.arange(SIZE)[None].astype(np.int32))
    g.add(Item, q=rng.normal(size=(7, SIZE)))
    g.add(Word, count=rng.integers(0, 9, (4, 2, SIZE)).astype(np.int32))
    offsets = np.cumsum([0, *rng.integers(0, 5, 20)])
    rated = gridml.csr(offsets, rng.integers(0, 7, offsets[-1]), rng.normal(size=offsets[-1]))
    said = rng.integers(0, 4, (20, 2))
    g.add(User, p=rng.normal(size=(20, SIZE)), bias=0, age=np.arange(20) % 3, rated=rated, said=said)
    return g


def square(x):
    y = 0.1 * x
    return x * x + y


'''
PROGRAM = "\n\nprogram = gridml.Program(graph, gridml.MiniBatch([{stages}], size=5, exact={exact}))\n"


def stage_text(body: str, signature: str, decorator: str) -> str:
    """Return the text of a stage called `stage`."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"@gridml.{decorator}\ndef stage({signature}) -> None:\n{lines}"


EDGE = "user: User, item: Item, rating: gridml.Link, at: At"
Write = Callable[..., Path]
Found = dict[str, NDArray[np.generic]]


def stages_in(program: Program) -> list[ExchangeStage | ApplyStage]:
    assert isinstance(program.shape, Stages)
    return list(program.shape.stages)


def kernel_in(path: Path) -> Kernel:
    """Return the kernel of the first stage of a program."""
    return kernel_of(stages_in(load(path))[0], exact=True)


def line_of(path: Path, text: str) -> int:
    """Return the number of the first line of a file that has a text."""
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def module_in(path: Path) -> ModuleType:
    """Return the module of a program's file, with its functions."""
    spec = importlib.util.spec_from_file_location(f"program_of_tests_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def trained(path: Path, *, count: int = 20, size: int = 5, **options: Any) -> Found:
    """Train a chunk of the first `count` vertices in mini-batches of `size`, and return every field that can change, by
    name. `options` are those of the engine."""
    program = load(path)
    graph = program.build(path)
    engine, chunk = Engine(program, **options), first_chunk(program, graph, count)
    engine.begin(chunk)
    engine.restart(initial(graph, 0).part(chunk.touched()))
    for start in range(0, count, size):
        engine.train(start, start + size, 1.0)
    rows = {**engine.wire(engine.snapshot()).rows, **engine.changed_fields(0, count)}
    return {f"{name}.{field}": values for name, each in rows.items() for field, values in each.fields.items()}
