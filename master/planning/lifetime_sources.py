"""Estimation of machine lifetimes from a given distribution, observed lives, a trace, or the ledger of a run."""

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
from chunk_model.prices import read_record
from chunk_model.traces import TraceError
from gridml.errors import UsageError
from master.backends.registry import read_settings
from master.planning.options import LifetimeSource
from master.store.reader import PushCosts, opened, read_clock, read_facts, read_push_costs
from master.store.settings import GAUSSIAN, GOODPUT, Settings
from master.telemetry.measures import died

NAMED = ("exponential", "weibull", "lognormal")  # families that `parse` reads back from text


@dataclass(frozen=True)
class RunLives:
    """Lives and costs of a run's workers."""

    observations: Observations
    exec_s: float | None  #: t_x: measured seconds to train a vertex; None before the first vertex is trained
    many: bool  #: a worker trains several chunks, one after another
    workers: int
    vertices: int | None  #: vertices of an epoch; None before the first epoch begins
    push: PushCosts | None = None  #: cost of a push; None before the first push was answered


@dataclass(frozen=True)
class LifetimeEstimate:
    """A distribution of lifetimes, and where it comes from."""

    lifetime: Lifetime
    origin: str  #: description of the source
    observations: Observations | None = None  #: lives that the distribution was fitted to; None: not fitted but given
    selected: Selected | None = None  #: result of the fit; None: not fitted but given
    run: RunLives | None = None  #: set if the lives are from a run's ledger


def estimate_lifetime(source: LifetimeSource) -> LifetimeEstimate:
    """Return the distribution that a source gives, or the distribution that fits the source's lives best.

    Raises UsageError unless exactly one source is given and readable, LedgerError for a run that cannot be read.
    """
    options = {"--lifetime": source.lifetime, "--lifetimes": source.lifetimes, "--trace": source.trace}
    given = [name for name, value in {**options, "--run": source.run}.items() if value is not None]
    if len(given) != 1:
        got = "none of them" if not given else f"{' and '.join(given)}"
        raise UsageError(
            f"got {got}; expected exactly one source of lifetimes (--lifetime, --lifetimes, --trace or --run), "
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
            "Give an existing file that you may read."
        ) from error
    except (LifetimeError, ObservationError, TraceError) as error:
        raise UsageError(f"{given[0]}: {error}") from error
    assert source.run is not None
    lives = run_lives(source.run)
    return _fitted(lives.observations, f"lives of workers of {source.run}", lives)


def expected_lifetime(
    lifetime: str | None, trace: Path | None, *, speedup: float = 1.0, rule: str = GOODPUT
) -> str | None:
    """Return, as text that `parse` reads, the given distribution of lifetimes or the distribution fitted to a trace.
    All lives are divided by `speedup`. Returns None if neither a distribution nor a trace is given.

    Raises the errors of `estimate_lifetime`, and UsageError for a distribution that the chunk `rule` cannot use.
    """
    if lifetime is None and trace is None:
        return None
    estimate = estimate_lifetime(LifetimeSource(lifetime=lifetime, trace=trace))
    law, normal = estimate.lifetime, rule == GAUSSIAN
    if estimate.observations is not None:
        law = select(estimate.observations, ("normal",) if normal else NAMED).lifetime
    if normal and not isinstance(law, Normal):
        raise UsageError(
            f"--chunk {GAUSSIAN} needs a normal distribution, got {law}; expected for example --lifetime "
            '"normal(45m,10m)". Give one, or omit --lifetime and --trace to fit it to the observed lives.'
        )
    return str(law.scaled(1 / speedup))


def run_lives(root: Path, now: float | None = None) -> RunLives:
    """Return the lives of a run's workers from its ledger. In a run in progress, lives are observed until `now`
    (seconds since 1970).

    A worker dies when its machine is taken away, when it crashes, or when it falls silent; a silent worker counts as
    alive until its last credit. The life of a worker is censored if the worker still lives, was ended by the master, or
    ended because its work was done. Raises LedgerError if the run cannot be read, UsageError if no worker has started.
    """
    with opened(root) as connection:
        return _run_lives(connection, root, read_settings(root, read_facts(connection).get("settings")), now)


def _run_lives(db: sqlite3.Connection, root: Path, settings: Settings, now: float | None) -> RunLives:
    clock = read_clock(db, root, now)
    # The text of a `silent` event begins with the worker's name and a colon.
    silent = {text.partition(":")[0] for (text,) in db.execute("SELECT text FROM events WHERE topic = 'silent'")}
    last_credit = dict(db.execute("SELECT worker, max(at_s) FROM credits GROUP BY worker"))
    columns = "worker, state, coalesce(cancelled, 0), detail, started_s, first_sync_s, ended_s"
    rows = db.execute(f"SELECT {columns} FROM workers WHERE started_s IS NOT NULL ORDER BY started_s").fetchall()
    if not rows:
        raise UsageError(f"--run: no worker of {root} has started yet. Try again later, or give --lifetime.")
    # For each worker, in order of start: seconds lived, whether it died, seconds from the run's start to its end.
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
        raise TraceError(f"{path} has no lives: no machine was ever up. Give a longer trace.")
    estimate = _fitted(Observations.of(record.lives, record.end_s), f"lives in {path} ({record.contents})")
    if not record.older:
        return estimate
    return replace(estimate, origin=f"{estimate.origin}; {record.older:,} of them may be older than the record")


def _fitted(observations: Observations, what: str, run: RunLives | None = None) -> LifetimeEstimate:
    chosen = select(observations)
    return LifetimeEstimate(chosen.lifetime, f"{len(observations):,} {what}", observations, chosen, run)
