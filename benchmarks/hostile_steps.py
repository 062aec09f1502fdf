"""Measure the effect of one hostile worker of n by the steps that it pushes, with and without the defences.

    python -m benchmarks.hostile_steps [SEED ...]

Real training on simulated machines: the real master, the real session, torch; only the time is simulated. The hostile
worker follows the protocol exactly and lies only in its replica. Its machine is never taken away. The worker that
replaces it after its quarantine is honest. The table is written after each line, tiny steps first; a line that is not
repeated keeps its date.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import sized, whole_numbers
from benchmarks.table import RESULTS, Cell, write
from chunk_model.goodput import Costs
from gridml.carriers.base import WorkerMailbox
from gridml.engine.engine import Snapshot
from gridml.engine.rng_state import RngState
from gridml.errors import GridmlError
from gridml.model.chunk import Chunk
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.protocol.push import ReplicaPart
from gridml.protocol.worker_state import WorkerOptions
from master.backends.script import Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.settings import Settings
from master.sync.gate import OUTLIER, GateResult
from remote.session import SessionOptions
from remote.stepped import SteppedEngine, SteppedWorker, Trainer

Array = NDArray[np.floating]
Attack = Callable[[Array, Array, float, np.random.Generator], Array]  # (replica, base, length of the step, rng)
PROGRAMS = Path(__file__).parent / "programs"
COSTS = Costs(exec_s=0.001, start_s=0.5, push_s=0.02, boot_s=1.0)
HOSTILE = "w1"
NAME = "hostile_steps"  # of the results
JUST_BELOW = 0.98 * OUTLIER
UNBOUNDED = (
    "none",
    "sign flip",
    "noise, honest length",
    "drift, honest length",
    "drift, half of it",
)  # no bound on lengths detects them
TINY = "none", "a hundredth", "noise, a hundredth", "a millionth"  # do short steps harm other workers' steps?
CHECKED = 0.1  # share of pushes that are spot checked


def _towards(base: Array, direction: Array, length: float) -> Array:
    norm = float(np.linalg.norm(direction))
    return base + direction * (length / norm if norm else 0.0)


ATTACKS: dict[str, Attack | None] = {
    "none": None,
    "zeros": lambda p, b, s, rng: np.zeros_like(p),
    "1e30": lambda p, b, s, rng: np.full_like(p, 1e30),
    "unchanged": lambda p, b, s, rng: b,
    "sign flip": lambda p, b, s, rng: 2 * b - p,
    "a hundredth": lambda p, b, s, rng: b + 0.01 * (p - b),
    "noise, a hundredth": lambda p, b, s, rng: _towards(b, rng.normal(size=p.shape), 0.01 * s),
    "a millionth": lambda p, b, s, rng: b + 1e-6 * (p - b),
    "scaled x5": lambda p, b, s, rng: b + 5 * (p - b),
    "sign flip x5": lambda p, b, s, rng: b - JUST_BELOW * (p - b),
    "noise at the bound": lambda p, b, s, rng: _towards(b, rng.normal(size=p.shape), JUST_BELOW * s),
    "noise, honest length": lambda p, b, s, rng: _towards(b, rng.normal(size=p.shape), s),
    "drift, honest length": lambda p, b, s, rng: _towards(b, np.random.default_rng(p.size).normal(size=p.shape), s),
    "drift, half of it": lambda p, b, s, rng: (
        0.5 * (p + _towards(b, np.random.default_rng(p.size).normal(size=p.shape), s))
    ),
    "drift at the bound": lambda p, b, s, rng: _towards(
        b, np.random.default_rng(p.size).normal(size=p.shape), JUST_BELOW * s
    ),
}


class HostileEngine(SteppedEngine):
    """An engine that trains like any other, and pushes something else. A `careful` one is honest when it can see that
    it repeats the training of others, so that only its own pushes give it away."""

    def __init__(self, program: Program, rng_state: RngState, attack: Attack, *, careful: bool) -> None:
        super().__init__(program, rng_state)
        self._attack = attack
        self._careful = careful
        self._forgot = self._honest = False
        self._rng = np.random.default_rng(1)
        self._base: dict[str, Array] = {}

    def begin(self, chunk: Chunk) -> None:
        self._honest, self._forgot = self._careful and self._forgot, False
        super().begin(chunk)

    def forget_optimisers(self) -> None:
        self._forgot = True
        super().forget_optimisers()

    def _take(self, newest: ReplicaPart, pushed: Snapshot | None, live: int) -> None:
        for tensors in newest.modules.values():
            self._base.update({name: values.copy() for name, values in tensors.items()})
        super()._take(newest, pushed, live)

    def wire(self, snapshot: Snapshot) -> ReplicaPart:
        part = super().wire(snapshot)
        modules = {}
        for key, tensors in part.modules.items():
            lies = {name: self._lie(name, values) for name, values in tensors.items()}
            self._base.update(lies)  # the next base, if the master fast-forwards to this push
            modules[key] = lies
        return ReplicaPart(modules, part.rows)

    def _lie(self, name: str, values: Array) -> Array:
        """Return the values that are pushed in place of a tensor's."""
        if values.dtype.kind != "f" or self._honest:
            return values
        length = float(np.linalg.norm(values - self._base[name]))
        return self._attack(values, self._base[name], length, self._rng).astype(values.dtype)


class HostileTrainer:
    """A maker of honest workers, and of a hostile one, which is a thousand times as fast if it trains nothing."""

    def __init__(self, source: Path, seed: int, attack: Attack | None, *, careful: bool) -> None:
        self._honest = Trainer(source, COSTS, seed)
        self._program = load(source)
        self._source = source
        self._attack = attack
        self._careful = careful

    def __call__(
        self, options: WorkerOptions, mailbox: WorkerMailbox, clock: Callable[[], float], speed: float
    ) -> SteppedWorker:
        if options.worker != HOSTILE or self._attack is None:
            return self._honest(options, mailbox, clock, speed)
        engine = HostileEngine(
            self._program, RngState("hostile", torch=self._program.uses_torch), self._attack, careful=self._careful
        )
        chosen = SessionOptions(options.worker, options.kind, options.chunks, options.patience_s, self._source)
        idle = self._attack is ATTACKS["unchanged"]
        return SteppedWorker(chosen, engine, mailbox, clock, COSTS, 1000.0 if idle else speed)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    accuracy: float
    ended: str  #: "finished", or the first line of the error that ended the run
    credited: float  #: share of the credits that went to the hostile worker
    blames: int
    quarantined: tuple[str, ...]  #: workers, in the order of their quarantine


@contextlib.contextmanager
def undefended() -> Iterator[None]:
    """Switch the defences off: accept every finite push."""

    def gate(not_finite: str | None, *_: object, **__: object) -> GateResult:
        return GateResult(None, f"{not_finite} is not finite") if not_finite else GateResult(1.0, "accepted")

    with (
        mock.patch("master.sync.merger.gate", gate),
        mock.patch("master.sync.merger.check_movement", lambda *_, **__: GateResult(1.0, "")),
        mock.patch("master.trust.trust.too_fast", lambda *_: (False, "")),
        mock.patch("master.sync.recovery.rollback_target", lambda *_: (None, "")),
    ):
        yield


@dataclass(frozen=True)
class Game:
    """One run with an attacker."""

    program: str
    workers: int
    attack: str
    seed: int
    rule: str = "stale_mean"  #: the merge rule
    defended: bool = True
    checked: float = 0.0  #: the share of pushes that are spot checked
    careful: bool = False  #: the attacker is honest when it repeats the training of others


def play(game: Game) -> Outcome:
    """Play one run to its end."""
    program, seed = PROGRAMS / f"{game.program}.py", game.seed
    scenario = Scenario(Steady(game.workers), COSTS, MachineSpeeds(sigma=0.3), travel_s=0.05, seed=seed)
    options = SimulatedOptions(None, None)
    settings = Settings(
        program, "simulated", game.workers, seed=seed, steps_each=0, options=options, spot_checks=game.checked
    )
    ended = "finished"
    rule = mock.patch.dict(os.environ, {"RULE": game.rule})
    with tempfile.TemporaryDirectory() as folder, rule, contextlib.nullcontext() if game.defended else undefended():
        root = Path(folder) / "run"
        trainer = HostileTrainer(program, seed, ATTACKS[game.attack], careful=game.careful)
        try:
            play_scenario(settings, scenario, root, trainer=trainer)
        except GridmlError as error:
            ended = str(error).splitlines()[0]
        return outcome(root, ended)


def outcome(root: Path, ended: str) -> Outcome:
    """Read how a run ended from its ledger."""
    with opened(root) as ledger:
        metrics = ledger.execute("SELECT metrics FROM epochs WHERE metrics NOT NULL ORDER BY epoch DESC").fetchone()
        accuracy = 0.0 if metrics is None else json.loads(metrics[0])["accuracy"]
        mine = "SELECT coalesce(sum(stop - start), 0) FROM credits WHERE worker = ?"
        total = ledger.execute("SELECT coalesce(sum(stop - start), 1) FROM credits").fetchone()[0]
        return Outcome(
            accuracy,
            ended,
            ledger.execute(mine, (HOSTILE,)).fetchone()[0] / total,
            ledger.execute("SELECT count(*) FROM blames").fetchone()[0],
            tuple(worker for (worker,) in ledger.execute("SELECT worker FROM quarantined ORDER BY at_s")),
        )


def games(seeds: list[int]) -> Iterator[list[Game]]:
    """Yield the runs of each line of the table: with the defences for each of its seeds, and last, if the line has one,
    the run without. Tiny steps on the first program are played with all seeds, its other attacks with two, and those on
    other programs with one."""
    programs = ("small_lenet", 3), ("small_lenet", 4), ("rows_transformer", 3), ("small_lenet", 8)
    for program, workers in programs:
        whole = (program, workers) == programs[0]
        for attack in ATTACKS if workers != 4 else TINY:
            played = seeds[: (len(seeds) if attack in TINY else 2) if whole else 1]
            first = Game(program, workers, attack, played[0])
            yield [*(replace(first, seed=seed) for seed in played), replace(first, defended=False)]
            if attack in UNBOUNDED:
                if whole:
                    yield [replace(first, seed=seed, rule="clipped") for seed in played]
                for careful in (False, True) if ATTACKS[attack] and whole else (False,):
                    yield [replace(first, seed=seed, checked=CHECKED, careful=careful) for seed in played]


def main() -> None:
    seeds = whole_numbers(__doc__, *sized((1, 2, 3), (1,)))
    lines = list(games(seeds))
    lines = sized(lines, lines[4:5])
    today, known = datetime.now(UTC).date().isoformat(), _known()
    order = [_key(_named(line[0])) for line in lines]
    rows = {key: known[key] for key in order if key in known}
    lines.sort(key=lambda line: line[0].attack not in TINY or bool(_named(line[0])["option"]))
    with (
        mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}),
        ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,
    ):
        ends = [[pool.submit(play, game) for game in line] for line in lines]
        for line, outcomes in zip(lines, ends, strict=True):
            row = _row(line, [outcome.result() for outcome in outcomes]) | {"date": today}
            rows[_key(row)] = row
            _write([rows[key] for key in order if key in rows], seeds)


def _write(rows: Sequence[Mapping[str, Cell]], seeds: Sequence[int]) -> None:
    write(
        NAME,
        "The effect of one hostile worker of n by its steps",
        rows,
        [
            f"accuracy with the defences, of seeds {', '.join(map(str, seeds))}, as many as runs; without, of one",
            "credits: share of all credits that the hostile worker earned; blamed: its pushes that were shortened or "
            "refused before it was in quarantine; quarantined: runs in which it was; alarms: honest workers in "
            "quarantine",
            f"checked: with --spot-checks {CHECKED}; careful: it is honest when it repeats the training of others, so "
            "that only its own pushes give it away; clipped: the merge rule gridml.clipped()",
            "a hundredth, a millionth: of its honest step; its credits are for vertices that were not trained",
            "at the bound: every step 4.9 times as long as the worker's own honest one; drift: always in one direction",
            "each line has its own date; some earlier ones were played on another machine",
        ],
    )


def _known() -> dict[tuple[Cell, ...], Mapping[str, Cell]]:
    """Return the recorded lines by key."""
    content = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
    earlier = {"date": content["machine"]["date"]}
    return {_key(row): earlier | row for row in content["rows"]}


def _key(row: Mapping[str, Cell]) -> tuple[Cell, ...]:
    return row["program"], row["workers"], row["attack"], row["option"]


def _named(first: Game) -> dict[str, Cell]:
    """Return the key of a line of the table."""
    against = [first.rule] if first.rule != "stale_mean" else []
    against += ["checked"] if first.checked else []
    attack = first.attack + (", careful" if first.careful else "")
    return {"program": first.program, "workers": first.workers, "attack": attack, "option": ", ".join(against)}


def _row(games: list[Game], outcomes: list[Outcome]) -> dict[str, Cell]:
    """Return a line of the table."""
    first = games[0]
    bare = outcomes[-1] if not games[-1].defended else None
    with_it = [outcome for game, outcome in zip(games, outcomes, strict=True) if game.defended]
    worst = min(with_it, key=lambda o: o.accuracy)
    row = _named(first) | {
        "worst %": round(100 * worst.accuracy, 1),
        "mean %": round(100 * statistics.mean(o.accuracy for o in with_it), 1),
        "ended": worst.ended[:40],
        "credits %": round(100 * max(o.credited for o in with_it), 1),
        "blamed": max(o.blames for o in with_it),
        "runs": len(with_it),
        "quarantined": sum(HOSTILE in o.quarantined for o in with_it),
        "alarms": sum(len(set(o.quarantined) - {HOSTILE}) for o in with_it),
    }
    if bare is None:
        return row
    return row | {
        "% without": round(100 * bare.accuracy, 1),
        "ended without": bare.ended[:40],
        "credits % without": round(100 * bare.credited, 1),
    }


if __name__ == "__main__":
    main()
