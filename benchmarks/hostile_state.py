"""Measure the effect of one hostile worker of n by the state that travels with the weights: moments of its optimiser,
and tensors that no optimiser trains.

The worker trains like the others and falsifies one thing only. The others live for 3 s each, so most training is done
by workers that began with others' moments. Without the defences, moments are passed on as the last worker sent them,
and every change of a buffer is merged. The arguments select attacks; by default all are run.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import sized, words
from benchmarks.hostile_steps import COSTS, HOSTILE, PROGRAMS, Outcome, outcome
from benchmarks.table import Cell, write
from gridml.carriers.base import WorkerMailbox
from gridml.engine.engine import Snapshot
from gridml.engine.rng_state import RngState
from gridml.errors import GridmlError
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.protocol.push import ReplicaPart
from gridml.protocol.worker_state import WorkerOptions
from master.backends.script import PlannedLife, Script
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from master.sync.buffers import BufferDecision, Change
from remote.session import SessionOptions
from remote.stepped import SteppedEngine, SteppedWorker, Trainer

Array = NDArray[Any]
Lie = Callable[[str, Array], Array | None]  # (name, values) -> the values sent instead; None: nothing is sent
PROGRAM = PROGRAMS / "indexed_net.py"
LIFE_S = 3.0
SEEDS = sized((1, 2, 3), (1,))


def _squares(bits: int) -> Lie:
    """Return a lie: second moments with these bits in bfloat16, and a plausible number of steps."""
    return lambda name, values: np.full_like(values, bits) if values.ndim else np.asarray(values * 2, np.float32)


MOMENTS: dict[str, Lie] = {
    "moments, huge": _squares(0x7F7F),
    "moments, zero": _squares(0),
    "moments, in part": lambda name, values: values if name.startswith("exp_avg_sq/") else None,
    "moments, scalars": lambda name, values: np.ones((), np.float32),
}
BUFFERS: dict[str, Lie] = {
    "order, out of range": lambda name, values: np.full_like(values, 2**62) if name.endswith("order") else values,
    "order, in range": lambda name, values: np.full_like(values, 19) if name.endswith("order") else values,
    "mask, halved": lambda name, values: values * np.float32(0.5) if name.endswith("mask") else values,
    "counter, 2**62": lambda name, values: np.full_like(values, 2**62) if name.endswith("tracked") else values,
}
ATTACKS = ("none", *MOMENTS, *BUFFERS)


class Lives(Script):
    """The first machine's worker lives on; those of the others are killed after `LIFE_S`, one machine after the
    other."""

    slots = 0

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def life(self, slot: int, k: int, free_s: float = 0.0) -> PlannedLife:
        first = LIFE_S * (1 + slot / self.slots)
        return PlannedLife(free_s, 1e9 if slot == 0 else first if k == 0 else LIFE_S)


class Liar(SteppedEngine):
    """A worker that trains like any other, but sends false state with the weights."""

    def __init__(self, program: Program, attack: str) -> None:
        super().__init__(program, RngState("hostile", torch=program.uses_torch))
        self._attack = attack

    def moments(self) -> dict[str, Array]:
        return _falsified(super().moments(), MOMENTS.get(self._attack))

    def wire(self, snapshot: Snapshot) -> ReplicaPart:
        part = super().wire(snapshot)
        lie = BUFFERS.get(self._attack)
        return ReplicaPart({key: _falsified(tensors, lie) for key, tensors in part.modules.items()}, part.rows)


def _falsified(tensors: Mapping[str, Array], lie: Lie | None) -> dict[str, Array]:
    if lie is None:
        return dict(tensors)
    sent = {name: lie(name, values) for name, values in tensors.items()}
    return {name: values for name, values in sent.items() if values is not None}


class LiarTrainer:
    """A maker of honest workers, and of one that lies."""

    def __init__(self, seed: int, attack: str) -> None:
        self._honest, self._attack = Trainer(PROGRAM, COSTS, seed), attack

    def __call__(
        self, options: WorkerOptions, mailbox: WorkerMailbox, clock: Callable[[], float], speed: float
    ) -> SteppedWorker:
        if options.worker != HOSTILE:
            return self._honest(options, mailbox, clock, speed)
        chosen = SessionOptions(options.worker, options.kind, options.chunks, options.patience_s, PROGRAM)
        return SteppedWorker(chosen, Liar(load(PROGRAM), self._attack), mailbox, clock, COSTS, speed)


@contextlib.contextmanager
def undefended() -> Iterator[None]:
    """Switch the defences off: pass on moments as the last worker sent them, and merge every change of a buffer."""

    def last(votes: Sequence[Mapping[str, Array]], needed: int) -> Mapping[str, Array]:
        return votes[-1]

    def take(change: Change) -> BufferDecision:
        return BufferDecision(True, "")

    with (
        mock.patch("master.sync.moments.validate", lambda *_, **__: (True, "")),
        mock.patch("master.sync.moments.votes_needed", lambda _: 1),
        mock.patch("master.sync.moments.combine", last),
        mock.patch("master.sync.buffers.decide", take),
    ):
        yield


@dataclass(frozen=True)
class Game:
    """One run with an attacker."""

    attack: str
    workers: int
    seed: int
    defended: bool = True


def play(game: Game) -> Outcome:
    """Play one run to its end."""
    scenario = Scenario(Lives(game.workers), COSTS, MachineSpeeds(sigma=0.3), travel_s=0.05, seed=game.seed)
    options = SimulatedOptions(None, None)
    settings = Settings(
        PROGRAM, "simulated", game.workers, seed=game.seed, steps_each=0, chunk=512, push_every=64, options=options
    )
    ended = "finished"
    with tempfile.TemporaryDirectory() as folder, contextlib.nullcontext() if game.defended else undefended():
        root = Path(folder) / "run"
        try:
            play_scenario(settings, scenario, root, trainer=LiarTrainer(game.seed, game.attack))
        except GridmlError as error:
            ended = str(error).splitlines()[0]
        return outcome(root, ended)


def main() -> None:
    attacks = words(__doc__, choices=ATTACKS) or [*sized(ATTACKS, ATTACKS[1:2])]
    lines = []
    for workers in sized((3, 4, 8), (3,)):
        for attack in attacks:
            games = [Game(attack, workers, seed) for seed in (SEEDS if workers == 3 else SEEDS[:1])]
            lines.append([*games, *([replace(games[0], defended=False)] if workers == 3 else [])])
    rows: list[dict[str, Cell]] = []
    with (
        mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}),
        ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,
    ):
        ends = [[pool.submit(play, game) for game in games] for games in lines]
        for games, outcomes in zip(lines, ends, strict=True):
            rows.append(_row(games, [end.result() for end in outcomes]))
            print(rows[-1], flush=True)
    if set(attacks) == set(ATTACKS):
        write(
            "hostile_state",
            "The effect of one hostile worker of n by its optimiser's moments and by buffers",
            rows,
            [
                f"accuracy with the defences, of seeds {', '.join(map(str, SEEDS))} with three workers, of the first "
                "seed with others; without the defences, of the first seed",
                "quarantined: runs in which the hostile worker was quarantined; alarms: honest workers in quarantine",
                f"all but the hostile worker live for {LIFE_S:g} s and start again, with others' moments",
            ],
        )


def _row(games: Sequence[Game], outcomes: Sequence[Outcome]) -> dict[str, Cell]:
    """Return a line of the table."""
    ends = [end for game, end in zip(games, outcomes, strict=True) if game.defended]
    row: dict[str, Cell] = {
        "workers": games[0].workers,
        "attack": games[0].attack,
        "worst %": round(100 * min(end.accuracy for end in ends), 1),
        "mean %": round(100 * sum(end.accuracy for end in ends) / len(ends), 1),
        "ended": next((end.ended for end in ends if end.ended != "finished"), "finished")[:40],
        "runs": len(ends),
        "quarantined": sum(HOSTILE in end.quarantined for end in ends),
        "alarms": sum(len(set(end.quarantined) - {HOSTILE}) for end in ends),
    }
    if games[-1].defended:
        return row
    return row | {"% without": round(100 * outcomes[-1].accuracy, 1), "ended without": outcomes[-1].ended[:40]}


if __name__ == "__main__":
    main()
