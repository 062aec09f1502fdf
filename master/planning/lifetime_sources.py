"""Estimate how long machines live: from a distribution, lives seen, a trace, the ledger of a run."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chunk_model.families import Normal
from chunk_model.fit import Selected, select
from chunk_model.lifetime import Lifetime, LifetimeError
from chunk_model.observations import ObservationError, Observations, read_csv
from chunk_model.parse import parse
from chunk_model.record import read_record
from chunk_model.traces import TraceError
from gridml.errors import UsageError
from master.backends.registry import read_settings
from master.planning.options import LifetimeSource
from master.store.reader import PushCosts, opened, read_clock, read_facts, read_push_costs
from master.store.settings import GAUSSIAN, GOODPUT, Settings
from master.telemetry.measures import died

NAMED = ("exponential", "weibull", "lognormal")  # families whose laws can be written in a word


@dataclass(frozen=True)
class RunLives:
    """The workers of a run: their lives, what they trained, and how the run used them.

    `exec_s` is t_x, the seconds to train a vertex as the workers measured it; None before any has. `many`: a worker
    takes chunk after chunk. `vertices` are those of an epoch, None before the first has begun. `push` is what a push
    costs, None before one was answered.
    """

    observations: Observations
    exec_s: float | None
    many: bool
    workers: int
    vertices: int | None
    push: PushCosts | None = None


@dataclass(frozen=True)
class LifetimeEstimate:
    """A distribution of lives and its `origin`, in words. Without `observations` it was given as such,
    otherwise it was `selected` for them."""

    lifetime: Lifetime
    origin: str
    observations: Observations | None = None
    selected: Selected | None = None
    run: RunLives | None = None


def estimate_lifetime(source: LifetimeSource) -> LifetimeEstimate:
    """Return the distribution that a source gives, or the one that fits its lives best.

    Raises UsageError unless exactly one source is given, and when it cannot be read; LedgerError for a run that cannot.
    """
    options = {"--lifetime": source.lifetime, "--lifetimes": source.lifetimes, "--trace": source.trace}
    given = [name for name, value in {**options, "--run": source.run}.items() if value is not None]
    if len(given) != 1:
        got = "none of them" if not given else f"{' and '.join(given)}"
        raise UsageError(
            f"got {got}; expected one of --lifetime, --lifetimes, --trace or --run, which say how long machines live, "
            'such as --lifetime "normal(45m,10m)".'
        )
    try:
        if source.lifetime is not None:
            return LifetimeEstimate(parse(source.lifetime), "as given")
        if source.lifetimes is not None:
            return _fitted(read_csv(source.lifetimes), f"lives in {source.lifetimes}")
        if source.trace is not None:
            return _traced(source.trace)
    except OSError as error:
        raise UsageError(
            f"{given[0]}: {source.lifetimes or source.trace} cannot be read: {error.strerror or error}. "
            "Name a file that is there and may be read."
        ) from error
    except (LifetimeError, ObservationError, TraceError) as error:
        raise UsageError(f"{given[0]}: {error}") from error
    assert source.run is not None
    lives = run_lives(source.run)
    return _fitted(lives.observations, f"lives of workers of {source.run}", lives)


def expected_lifetime(
    lifetime: str | None, trace: Path | None, *, speedup: float = 1.0, rule: str = GOODPUT
) -> str | None:
    """Return the law of lives that a user expects as text that `parse` reads: as given, or fitted to a trace, and
    `speedup` times as short; None without either.

    Raises as `estimate_lifetime` does, and UsageError for a law by which chunks of that `rule` cannot be chosen.
    """
    if lifetime is None and trace is None:
        return None
    estimate = estimate_lifetime(LifetimeSource(lifetime=lifetime, trace=trace))
    law, normal = estimate.lifetime, rule == GAUSSIAN
    if estimate.observations is not None:
        law = select(estimate.observations, ("normal",) if normal else NAMED).lifetime
    if normal and not isinstance(law, Normal):
        raise UsageError(
            f"--chunk {GAUSSIAN} is for lives that are normal, got {law}; expected such as --lifetime "
            '"normal(45m,10m)". Give one, or leave --lifetime and --trace out: then it is fitted to the lives seen.'
        )
    return str(law.scaled(1 / speedup))


def run_lives(root: Path, now: float | None = None) -> RunLives:
    """Return the lives of a run's workers, from its ledger; also while it goes on, as at `now` (seconds since 1970).

    A life ends when its machine is taken away, when it crashes, and when it falls silent: the last was then heard of
    with its last credit. One that still lives, or was ended by the master or because its work was done, would have
    lived on: it is censored. Raises LedgerError when the run cannot be read, UsageError when it has had no workers.
    """
    with opened(root) as connection:
        return _run_lives(connection, root, read_settings(root, read_facts(connection).get("settings")), now)


def _run_lives(db: sqlite3.Connection, root: Path, settings: Settings, now: float | None) -> RunLives:
    clock = read_clock(db, root, now)
    silent = {text.partition(":")[0] for (text,) in db.execute("SELECT text FROM events WHERE topic = 'silent'")}
    last_credit = dict(db.execute("SELECT worker, max(at_s) FROM credits GROUP BY worker"))
    columns = "worker, state, coalesce(cancelled, 0), detail, started_s, first_sync_s, ended_s"
    rows = db.execute(f"SELECT {columns} FROM workers WHERE started_s IS NOT NULL ORDER BY started_s").fetchall()
    if not rows:
        raise UsageError(f"--run: no worker of {root} has started yet. Look again later, or give --lifetime.")
    lasted, ended, until = [], [], []
    for worker, state, cancelled, detail, started_s, first_sync_s, ended_s in rows:
        end_s, dead = clock.end_s if ended_s is None else ended_s, False
        if worker in silent:
            end_s, dead = max(started_s, first_sync_s or 0.0, last_credit.get(worker, 0.0)), True
        else:
            dead = died(state, bool(cancelled), detail or "")
        lasted.append(max(0.0, end_s - started_s))
        ended.append(dead)
        until.append(max(0.0, end_s - clock.start_s))
    trained, train_s = db.execute("SELECT sum(trained), sum(train_s) FROM workers").fetchone()
    vertices = db.execute("SELECT max(vertices) FROM epochs").fetchone()[0]
    return RunLives(
        Observations(np.array(lasted), np.array(ended), np.array(until)),
        exec_s=train_s / trained if trained and train_s > 0 else None,
        many=settings.facts.chunks_per_job != 1,
        workers=settings.workers,
        vertices=vertices,
        push=read_push_costs(db),
    )


def _traced(path: Path) -> LifetimeEstimate:
    record = read_record(path)
    if not record.lives:
        raise TraceError(f"{path} holds no life: nothing was ever there. Give a longer trace.")
    estimate = _fitted(Observations.of(record.lives, record.end_s), f"lives in {path} ({record.contents})")
    if not record.older:
        return estimate
    return replace(estimate, origin=f"{estimate.origin}; {record.older:,} of them may be older than the record")


def _fitted(observations: Observations, what: str, run: RunLives | None = None) -> LifetimeEstimate:
    chosen = select(observations)
    return LifetimeEstimate(chosen.lifetime, f"{len(observations):,} {what}", observations, chosen, run)
