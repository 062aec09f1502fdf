"""How a run is to be done: parsed once, written into the run directory, never changed deep inside."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridml.errors import UsageError


@dataclass(frozen=True)
class Settings:
    """Times are in seconds. None means that gridml chooses.

    `lifetime` and `trace` (a file of adds and removes) say how long the workers of the local back end live, `speedup`
    compresses both; `chunk` and `push_every` are vertices; `push_budget` is the share of time that pushes may take.
    """

    program: Path
    backend: str = "local"
    workers: int = 2
    epochs: int | None = None
    seed: int = 0
    lifetime: str | None = None
    trace: Path | None = None
    speedup: float = 1.0
    chunk: int | None = None
    push_every: int | None = None
    push_budget: float = 0.03
    threads: int = 1
    silent_s: float = 120.0

    def __post_init__(self) -> None:
        for name, low in (("workers", 1), ("epochs", 1), ("chunk", 1), ("push_every", 1), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; expected at least {low}.")
        for name in ("speedup", "push_budget", "silent_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(self, name)}; expected a number above 0.")
        if self.lifetime is not None and self.trace is not None:
            raise UsageError(
                "got both --lifetime and --trace; expected one of them, or neither for workers that live on."
            )

    def to_json(self) -> dict[str, Any]:
        return {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(self).items()}

    @staticmethod
    def from_json(values: dict[str, Any]) -> Settings:
        trace = values["trace"]
        return Settings(
            **{**values, "program": Path(values["program"]), "trace": None if trace is None else Path(trace)}
        )
