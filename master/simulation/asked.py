"""What `gridml simulate` is asked for, turned into the settings of a run and a scenario."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chunk_model.costs import CostError, Costs
from chunk_model.lifetime import LifetimeError
from chunk_model.parse import parse
from gridml.carriers.faulty import Chances
from gridml.errors import UsageError
from master.backends.choose import most_at_once, read_trace
from master.backends.script import Lives, Replay, Script, Steady
from master.plan import seconds
from master.settings import Settings
from master.simulation.scenario import Scenario, Speeds, Storms

NO_PUSH = 2**40  # vertices between two pushes that no chunk has
_COSTS = {"t_x": "exec_s", "t_c": "copy_s", "t_s": "start_s", "t_e": "end_s", "push": "push_s", "wait": "wait_s",
          "boot": "boot_s"}  # fmt: skip
_FAULTS = {"lose": "lose", "repeat": "repeat", "tear": "truncate", "flip": "corrupt", "delay": "delay_s"}


@dataclass(frozen=True)
class Asked:
    """What the command line says; texts are times, or lists such as `t_x=0.1,t_s=5`."""

    cost: str
    workers: int = 100
    vertices: int | None = None
    epochs: int | None = None
    lifetime: str | None = None
    trace: Path | None = None
    seed: int = 0
    chunk: int | None = None
    push_every: int | None = None
    no_push: bool = False
    grace_share: float = 0.5
    late: int | None = 0
    fast: float = 0.0
    fast_factor: float = 4.0
    spread: float = 0.0
    storm_every: str | None = None
    storm_share: float = 0.3
    faults: str | None = None
    crash_every: str | None = None
    chunks_per_job: int = 0
    turn: str = "0.05"
    silence: str = "120"


def costs(text: str, *, no_push: bool = False) -> Costs:
    """The costs in a text such as "t_x=0.05,t_s=30,push=0.5". Raises UsageError."""
    given = {_COSTS[name]: value for name, value in _pairs("--cost", text, _COSTS)}
    if "exec_s" not in given:
        raise UsageError(f"--cost is {text!r}; expected at least t_x, as in t_x=0.05,t_s=30.")
    if no_push:
        given.pop("push_s", None)
    try:
        return Costs(**given)
    except CostError as error:
        raise UsageError(f"--cost: {error}") from error


def faults(text: str | None) -> Chances | None:
    """The faults in a text such as "lose=0.01,repeat=0.01,tear=0.01,flip=0.01,delay=5". Raises UsageError."""
    if text is None:
        return None
    given = {_FAULTS[name]: value for name, value in _pairs("--faults", text, _FAULTS)}
    for name, value in given.items():
        if name != "delay_s" and value > 1:
            raise UsageError(f"--faults has {name}={value:g}; expected chances from 0 to 1.")
    return Chances(**given)


def _pairs(option: str, text: str, known: Iterable[str]) -> list[tuple[str, float]]:
    found = []
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in known:
            raise UsageError(f"{option} has {part.strip()!r}; expected NAME=NUMBER with a name of {', '.join(known)}.")
        number = seconds(f"{name} in {option}", value)
        if number is None or not math.isfinite(number) or number < 0:
            raise UsageError(f"{option} has {part.strip()!r}; expected a number of at least 0.")
        found.append((name, number))
    return found


def settings(asked: Asked, program: Path) -> Settings:
    """The settings of the simulated run."""
    workers = asked.workers if asked.trace is None else most_at_once(read_trace(asked.trace))
    return Settings(
        program=program,
        backend="simulated",
        workers=workers,
        epochs=asked.epochs,
        seed=asked.seed,
        lifetime=asked.lifetime,
        trace=asked.trace,
        chunk=asked.chunk,
        push_every=NO_PUSH if asked.no_push else asked.push_every,
        silent_s=seconds("--silence", asked.silence) or 120.0,
    )


def scenario(asked: Asked, workers: int) -> Scenario:
    """Everything around the run. Raises UsageError for what makes no sense."""
    script = _script(asked, workers)
    every_s = seconds("--storm-every", asked.storm_every)
    if every_s is not None:
        script = Storms(script, every_s, asked.storm_share, asked.seed)
    return Scenario(
        script=script,
        costs=costs(asked.cost, no_push=asked.no_push),
        speeds=Speeds(asked.fast, asked.fast_factor, asked.spread),
        faults=faults(asked.faults),
        crash_every_s=seconds("--crash-every", asked.crash_every),
        turn_s=seconds("--turn", asked.turn) or 0.05,
        chunks_per_job=asked.chunks_per_job,
        seed=asked.seed,
    )


def _script(asked: Asked, workers: int) -> Script:
    if asked.trace is not None and asked.lifetime is not None:
        raise UsageError("got both --lifetime and --trace; expected one of them, or neither for machines that stay.")
    if asked.trace is not None:
        return Replay(read_trace(asked.trace), asked.seed, graceful_share=asked.grace_share)
    if asked.lifetime is None:
        return Steady(workers)
    try:
        lives = parse(asked.lifetime)
    except LifetimeError as error:
        raise UsageError(f"--lifetime: {error}") from error
    return Lives(workers, lives, asked.seed, graceful_share=asked.grace_share, late=asked.late)
