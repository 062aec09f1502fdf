"""examples/mf.py for ratings of the benchmarks, and other settings."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import gridml
from benchmarks.graph_programs.ratings import Ratings
from gridml.model.stages import GlobalSync

MF = Path(__file__).parents[2] / "examples" / "mf.py"


@dataclass(frozen=True)
class Settings:
    """Settings of the example."""

    rate: float
    ridge: float
    decay: float  #: times which the rate is taken after each pass
    size: int = 1_000  #: users in a mini-batch


OURS = Settings(0.08, 0.025, 0.6)


def program(module: ModuleType, ratings: Ratings, settings: Settings, seed: int = 0) -> gridml.Program:
    """Return the example as a program for these ratings."""

    def graph() -> gridml.Graph:
        start, g = np.random.default_rng(seed), gridml.Graph()
        g.add(module.Shared, mean=ratings.stars.mean(), rate=settings.rate)
        g.add(module.Item, bias=0, q=start.normal(0, 0.1, (ratings.items, module.RANK)))
        rated = gridml.csr(ratings.offsets, ratings.item, ratings.stars)
        g.add(module.User, bias=0, p=start.normal(0, 0.1, (ratings.users, module.RANK)), rated=rated)
        return g

    def cool(shared: Any) -> None:
        shared.rate *= settings.decay

    cool.__annotations__["shared"] = module.Shared
    stages: list[gridml.MiniBatch | GlobalSync] = [
        gridml.MiniBatch([module.learn], size=settings.size),
        gridml.global_sync(cool),
    ]
    return gridml.Program(graph, stages, epochs=20)


def example(settings: Settings) -> ModuleType:
    """Return examples/mf.py with the ridge of these settings."""
    spec = importlib.util.spec_from_file_location("mf_of_benchmark", MF)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.RIDGE = settings.ridge  # type: ignore[attr-defined]
    return module
