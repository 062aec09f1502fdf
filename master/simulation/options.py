"""Turn the options of `gridml simulate` into the settings of a run and a scenario."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from chunk_model.goodput import CostError, Costs
from gridml.errors import UsageError
from gridml.protocol.messages import NO_PUSH
from master.backends.script import Script, ScriptedLives
from master.backends.simulated_plugin import (
    MACHINES,
    SimulatedOptions,
    SimulationOptions,
    max_at_once,
    read_trace,
    script_of,
)
from master.planning.lifetime_sources import expected_lifetime
from master.simulation.faulty_network import Chances
from master.simulation.scenario import MachineSpeeds, Scenario, Storms
from master.simulation.world import check_lives, check_silence
from master.state.options import parse_seconds
from master.store.settings import GOODPUT, Settings, settings_said

MAX_VERTICES = 10**9  # per epoch
MAX_DELAY_S = 86_400.0  # of a message; bounded because a worker sends another copy every 15 s until the reply comes
MIN_VERTEX_S = 1e-8  # training time of a vertex; the rounded clock of a long run would lose a shorter time
# Names on the command line, and the fields that they set.
_COSTS = {"t_x": "exec_s", "t_c": "copy_s", "t_s": "start_s", "t_e": "end_s", "push": "push_s", "wait": "wait_s",
          "boot": "boot_s"}  # fmt: skip
_FAULTS = {"lose": "lose", "repeat": "repeat", "tear": "truncate", "flip": "corrupt", "delay": "delay_s"}


def parse_costs(text: str, *, no_push: bool = False) -> Costs:
    """Parse costs such as "t_x=0.05,t_s=30,push=0.5". With `no_push`, the cost of a push is ignored. Raises
    UsageError."""
    given = {_COSTS[name]: value for name, value in _pairs("--cost", text, _COSTS, parse_seconds)}
    if "exec_s" not in given:  # the only cost without a default
        raise UsageError(f"--cost is {text!r}; expected at least t_x, as in t_x=0.05,t_s=30.")
    if no_push:
        given.pop("push_s", None)
    try:
        return Costs(**given)
    except CostError as error:
        raise UsageError(f"--cost: {error}") from error


def parse_faults(text: str | None) -> Chances | None:
    """Parse faults such as "lose=0.01,repeat=0.01,tear=0.01,flip=0.01,delay=5". Raises UsageError."""
    if text is None:
        return None
    given = {_FAULTS[name]: value for name, value in _pairs("--faults", text, _FAULTS, _chance_or_delay)}
    for name, value in given.items():
        if name != "delay_s" and value > 1:
            raise UsageError(f"--faults has {name}={value:g}; expected chances from 0 to 1.")
    if given.get("delay_s", 0.0) > MAX_DELAY_S:
        raise UsageError(f"--faults has delay={given['delay_s']:g}; expected at most {MAX_DELAY_S:g} s, a day.")
    return Chances(**given)


def _chance_or_delay(what: str, text: str) -> float | None:
    if what.startswith("delay "):  # a time may have a unit, a probability has none
        return parse_seconds(what, text)
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{what} is {text!r}; expected a chance from 0 to 1.") from None


def _pairs(
    option: str, text: str, names: Iterable[str], read: Callable[[str, str], float | None]
) -> list[tuple[str, float]]:
    pairs = []
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in names:
            raise UsageError(f"{option} has {part.strip()!r}; expected NAME=NUMBER with a name of {', '.join(names)}.")
        number = read(f"{name} in {option}", value)
        if number is None or not math.isfinite(number) or number < 0:
            raise UsageError(f"{option} has {part.strip()!r}; expected a number of at least 0.")
        pairs.append((name, number))
    if len(dict(pairs)) < len(pairs):
        raise UsageError(f"{option} is {text!r}; expected each name once.")
    return pairs


def settings_for(options: SimulationOptions, program: Path, values: Mapping[str, Any]) -> Settings:
    """Return the settings of the simulated run. `values` are the options that simulated and real runs share. Raises
    UsageError for options that are invalid or contradict each other."""
    said = settings_said({"workers": MACHINES, **values})
    if options.vertices is not None and not 1 <= options.vertices <= MAX_VERTICES:
        raise UsageError(f"--vertices is {options.vertices}; expected 1 to {MAX_VERTICES:,}.")
    if options.trace is not None:  # one worker for each machine that the trace has at the same time
        said["workers"] = max_at_once(read_trace(options.trace))
    if (rule := said.get("chunk_rule", GOODPUT)) != GOODPUT:  # the goodput rule uses observed lifetimes instead
        said["expected_lifetime"] = expected_lifetime(options.lifetime, options.trace, rule=rule)
    own = SimulatedOptions(options.lifetime, options.trace)
    return Settings(program=program, backend="simulated", options=own, **said)


def scenario_for(options: SimulationOptions, settings: Settings) -> Scenario:
    """Return the scenario of the run. Raises UsageError for invalid options, and for a run that can never finish."""
    costs = parse_costs(options.cost, no_push=settings.push_every == NO_PUSH)
    for option, share in (("--grace-share", options.grace_share), ("--storm-share", options.storm_share)):
        if not 0 <= share <= 1 and (option == "--grace-share" or options.storm_every is None):
            raise UsageError(f"{option} is {share}; expected a share from 0 to 1.")
    speeds = MachineSpeeds(options.fast, options.fast_factor, options.spread)
    if costs.exec_s / speeds.fastest < MIN_VERTEX_S:
        raise UsageError(
            f"the fastest machines train a vertex in {costs.exec_s / speeds.fastest:.3g} s; expected at least "
            f"{MIN_VERTEX_S:g} s: give a longer t_x, for several vertices at once, a smaller --fast-factor or --spread."
        )
    script = _script(options, settings)
    if isinstance(script, ScriptedLives):  # checked before `Storms` hides the lifetime
        first, grace_s = _first(options, settings), script.grace_s if options.grace_share else 0.0
        check_lives(script.lifetime, costs, first, speeds.fastest, grace_s)
    travel_s = parse_seconds("--travel", options.travel) or 0.0
    if travel_s > MAX_DELAY_S:
        raise UsageError(f"--travel is {options.travel!r}; expected at most {MAX_DELAY_S:g} s, a day.")
    check_silence(costs, _slowest(speeds), settings.silent_s, travel_s, chunk=settings.chunk or 1)
    every_s = parse_seconds("--storm-every", options.storm_every)
    if every_s is not None:
        script = Storms(script, every_s, options.storm_share, settings.seed)
    return Scenario(
        script=script,
        costs=costs,
        speeds=speeds,
        faults=parse_faults(options.faults),
        crash_every_s=parse_seconds("--crash-every", options.crash_every),
        turn_s=_above_0("--turn", options.turn),
        travel_s=travel_s,
        chunks_per_job=options.chunks_per_job,
        seed=settings.seed,
    )


def check_batch(scenario: Scenario, silent_s: float, batch: int) -> None:
    """Raise UsageError if a batch of the program takes so long that its worker would be given up."""
    check_silence(scenario.costs, _slowest(scenario.speeds), silent_s, batch=batch)


def _slowest(speeds: MachineSpeeds) -> float:
    """Return the median speed of the slower kind of machines."""
    return min(1.0, speeds.factor) if speeds.fast else 1.0


def _first(options: SimulationOptions, settings: Settings) -> int:
    """Return the minimum number of vertices that a worker trains before its first credit.

    The minimum is 1 if some machines leave with a warning, because a worker then pushes whatever it has trained. It is
    also 1 if gridml chooses the chunk size or the push interval, because it can choose 1.
    """
    chunk, every = settings.chunk, settings.push_every
    if options.grace_share or chunk is None or every is None:
        return 1
    return min(chunk, every, options.vertices or chunk)


def _above_0(option: str, text: str) -> float:
    value = parse_seconds(option, text)
    if not value:  # None and 0
        raise UsageError(f"{option} is {text!r}; expected a time above 0: seconds such as 0.05, or 90s, 45m, 1.5h.")
    return value


def _script(options: SimulationOptions, settings: Settings) -> Script:
    if options.trace is not None and options.lifetime is not None:
        raise UsageError("got both --lifetime and --trace; expected one of them, or neither for machines that stay.")
    if options.late and options.lifetime is None:
        raise UsageError(
            f"got --late {options.late} without --lifetime; expected both: it says how much later they come."
        )
    return script_of(options.lifetime, options.trace, settings, late=options.late, graceful_share=options.grace_share)
