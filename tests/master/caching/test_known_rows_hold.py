"""A worker always trains on a version of the master, row by row and network by network, whatever it kept, released,
or lost on the way."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.protocol.messages import Lease, Verdict
from gridml.protocol.push import ModuleTensors, VertexKey
from gridml.protocol.worker_actions import BeginChunk, KeepOnly, TakeSnapshot, Train
from master.backends.script import Script, ScriptedLives, Steady
from master.backends.simulated_plugin import SimulatedOptions
from master.caching import known_rows
from master.simulation.result import verify_credits
from master.simulation.scenario import Chances, MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.replica import Replica
from master.store.settings import Settings
from master.sync import rows
from master.sync.pushes import Pushes
from master.sync.rows import PendingReply
from master.views.report import report
from remote.session import Session
from remote.stepped import Trainer
from tests.support.effort import first

BATCH = 5
COSTS = Costs(exec_s=0.01, start_s=0.2, push_s=0.02, boot_s=0.5)
PROGRAM = """
    import numpy as np
    import gridml

    ROWS, COLUMNS = 1200, 1200


    class Word(gridml.Vertex):
        value = gridml.array("float32", (3,))
        seen = gridml.array("int64")
        aggregate = gridml.stale_mean()


    class Tally(gridml.Vertex):
        count = gridml.array("int64")

        def aggregate(self, other, merge):
            self.count = max(self.count, other.count)


    class Text(gridml.Vertex):
        place = gridml.array("float32")
        words = gridml.edge(Word)
        tally = gridml.edge(Tally)


    @gridml.update(batch=5)
    def train(texts: gridml.Batch[Text], words: gridml.Batch[Word], tallies: gridml.Batch[Tally]) -> None:
        words.value += 0.1 * (texts.place.mean() - words.value)
        tallies.count += 1


    def graph() -> gridml.Graph:
        rng = np.random.default_rng(1)
        g = gridml.Graph()
        g.add(Word, value=np.zeros((COLUMNS, 3), np.float32), seen=np.arange(COLUMNS))
        g.add(Tally, count=np.zeros(5, np.int64))
        part = np.arange(ROWS)[:, None] * 4 // ROWS
        words = (part * COLUMNS + rng.integers(0, COLUMNS, (ROWS, 6))) // 4
        g.add(Text, place=np.arange(ROWS, dtype=np.float32), words=words, tally=np.arange(ROWS) * 5 // ROWS)
        return g


    program = gridml.Program(graph, train, epochs=3, shuffle="none")
"""

NETWORKS = """
    import numpy as np
    import torch
    from torch import nn
    import gridml

    POINTS, NETWORKS = 960, 48


    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.number = nn.Parameter(torch.randint(0, 1000, (2,)).double())


    class Network(gridml.Vertex):
        model = gridml.module(Counter)
        aggregate = gridml.add()


    class Point(gridml.Vertex):
        network = gridml.edge(Network)


    @gridml.update(batch=5)
    def train(points: gridml.Batch[Point], network: Network) -> None:
        with torch.no_grad():
            network.model.number += len(points)


    def graph() -> gridml.Graph:
        g = gridml.Graph()
        g.add(Network, NETWORKS)
        g.add(Point, POINTS, network=np.arange(POINTS) // 20 % NETWORKS)
        return g


    program = gridml.Program(graph, train, epochs=3, shuffle="none")
"""


class Watched:
    """An observer of all workers. It compares rows with the master's, of the version that the worker reports: the used
    rows before every batch, and the carried rows before every push. A chunk that began while a push travelled waits for
    the answer, which has the changed rows. Rows may differ only if a lease has ended and its worker does not know that;
    no push of such `doubted` leases may be merged. A worker's copies of the master's modules are compared as well.
    `seen` counts the batches, those that began with rows of an earlier chunk, and released modules; `most` is the
    largest number of modules of a worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.history: dict[int, dict[str, dict[str, np.ndarray[Any, Any]]]] = {}
        self.modules: dict[int, dict[VertexKey, ModuleTensors]] = {}
        self.most = 0
        self.seen: Counter[str] = Counter()
        self.doubted: set[tuple[str, int]] = set()  # workers and leases
        self.begun: WeakSet[Session] = WeakSet()  # chunks while a push travelled
        commit, train, start, begin = Replica.commit_version, Session._train, Replica.start, Session._begin
        copy, take, release = Session._take_snapshot, Pushes._take, Session._keep_only

        def committed(replica: Replica, *arguments: Any, **named: Any) -> str:
            sha256 = commit(replica, *arguments, **named)
            self._keep(replica)
            return sha256

        def started(replica: Replica, *arguments: Any) -> str:
            sha256 = start(replica, *arguments)
            self._keep(replica)
            return sha256

        def trained(session: Session, action: Train) -> Any:
            if not (session in self.begun and session._courier.busy):
                self.begun.discard(session)
                self._check_batch(session, action)
            return train(session, action)

        def copied(session: Session, action: TakeSnapshot) -> Any:
            work = session.state._to_copy
            assert work is not None
            for type_name, table in session._engine._replicated_rows():
                self._check(session, work.lease, type_name, table.ids[table.dirty])
            self._check_modules(session, work.lease)
            return copy(session, action)

        def left(session: Session, action: KeepOnly) -> None:
            before = len(session._engine._views)
            self.most = max(self.most, before)
            release(session, action)
            self.seen["released"] += before - len(session._engine._views)
            assert session._engine._views.keys() <= action.modules

        def taken(pushes: Pushes, pending: PendingReply, *arguments: Any) -> None:
            take(pushes, pending, *arguments)
            if pending.verdict is Verdict.MERGED:
                assert (pending.record.name, pending.push.lease) not in self.doubted

        def chunk_begun(session: Session, action: BeginChunk) -> Any:
            if session._courier.busy:
                self.begun.add(session)
            return begin(session, action)

        monkeypatch.setattr(Pushes, "_take", taken)
        monkeypatch.setattr(Session, "_begin", chunk_begun)
        monkeypatch.setattr(Replica, "commit_version", committed)
        monkeypatch.setattr(Replica, "start", started)
        monkeypatch.setattr(Session, "_train", trained)
        monkeypatch.setattr(Session, "_take_snapshot", copied)
        monkeypatch.setattr(Session, "_keep_only", left)

    def _keep(self, replica: Replica) -> None:
        arrays = replica.state.arrays.items()
        self.history[replica.version] = {t: {n: c.copy() for n, c in columns.items()} for t, columns in arrays}
        self.modules[replica.version] = {key: state.tensors for key, state in replica.state.modules.items()}

    def _check_batch(self, session: Session, action: Train) -> None:
        chunk, stop = session._engine.chunk, min(action.start + BATCH, action.stop)
        assert chunk is not None
        for edges in chunk.edges.values():
            if edges.target not in session._engine.replicated.caches:
                continue
            ids = chunk.tables[edges.target].ids
            self._check(
                session, action.lease, edges.target, ids[np.unique(edges.index[edges.span(action.start, stop)])]
            )
            self.seen["batches"] += 1
            self.seen["kept"] += len(session._engine.replicated.caches[edges.target]) > len(ids)

    def _check(self, session: Session, lease: Lease, type_name: str, ids: np.ndarray[Any, Any]) -> None:
        version = self.history[session.state._version][type_name]
        for name, values in session._engine.replicated.caches[type_name].values(ids).items():
            if not np.array_equal(values, version[name][ids]):
                self.doubted.add((session._options.worker, lease.id))

    def _check_modules(self, session: Session, lease: Lease) -> None:
        """Compare a worker's copy of the master's tensors, of the modules that it has used since its last push."""
        master, version = session._master._modules, self.modules.get(session.state._version, {})
        for key in session._engine._used:
            self.seen["modules"] += 1
            held = master.get(key, {})
            if any(not np.array_equal(held.get(name), values) for name, values in version[key].items()):
                self.doubted.add((session._options.worker, lease.id))


def play(tmp_path: Path, script: Script, share: float = 0.0, program: str = PROGRAM, **wrong: Any) -> Path:
    tmp_path.mkdir(exist_ok=True)
    file, root = tmp_path / "texts.py", tmp_path / "run"
    file.write_text(textwrap.dedent(program))
    settings = Settings(
        file, "simulated", 3, chunk=100, push_every=10, options=SimulatedOptions(None, None), spot_checks=share
    )
    scenario = replace(Scenario(script, COSTS), **wrong)
    play_scenario(settings, scenario, root, trainer=Trainer(file, COSTS))
    exact = verify_credits(root)
    assert exact.finished == exact.epochs
    return root


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_rows_that_were_kept_are_the_masters_own(share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    play(tmp_path, Steady(3), share)
    assert watched.seen["kept"] > watched.seen["batches"] / 2 > 100
    assert not watched.doubted


@pytest.mark.parametrize("seed", first(2, range(4)))
def test_they_are_when_workers_and_masters_die_and_messages_are_lost(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    faults = Chances(lose=0.03, repeat=0.1, truncate=0.03, corrupt=0.03, delay_s=0.5)
    play(tmp_path, ScriptedLives(3, Exponential(6.0), seed), 0.1, faults=faults, crash_every_s=3.0)
    assert watched.seen["kept"] > 50


def grown(watched: Watched) -> set[float]:
    """Return the growth of each network's number: the points that were trained on it."""
    first, last = watched.modules[0], watched.modules[max(watched.modules)]
    return {float(g) for key, tensors in last.items() for n in tensors for g in np.ravel(tensors[n] - first[key][n])}


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_networks_without_a_lease_are_released(share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    play(tmp_path, Steady(3), share, NETWORKS)
    assert not watched.doubted
    assert grown(watched) == {3 * 960 / 48}
    assert watched.seen["released"] > 100
    assert watched.most <= 3 * 6  # of the chunks before, in hand and ahead


@pytest.mark.parametrize("seed", first(2, range(4)))
def test_they_are_had_again_when_workers_and_masters_die_and_messages_are_lost(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    faults = Chances(lose=0.03, repeat=0.1, truncate=0.03, corrupt=0.03, delay_s=0.5)
    speeds = MachineSpeeds(sigma=0.6)
    play(
        tmp_path,
        ScriptedLives(3, Exponential(6.0), seed),
        0.1,
        NETWORKS,
        faults=faults,
        speeds=speeds,
        crash_every_s=3.0,
    )
    assert grown(watched) == {3 * 960 / 48}
    assert watched.seen["released"] > 30


def test_they_are_when_a_worker_may_keep_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = report(play(tmp_path / "plain", Steady(3)))
    watched = Watched(monkeypatch)
    for most in (1000, 6000, 9000):
        monkeypatch.setattr(known_rows, "MAX_WORKER_BYTES", most)
        watched.seen.clear()
        bounded = report(play(tmp_path / f"{most} bytes", Steady(3)))
        assert watched.seen["kept"] > 0
        assert bounded.bytes_down > plain.bytes_down


def test_workers_do_not_wait_for_rows_if_messages_are_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push and its answer take as long as many batches, which are trained in the same time."""
    slow = Chances(delay_s=3.0)
    piecewise = report(play(tmp_path / "piecewise", Steady(3), faults=slow)).wall_s
    monkeypatch.setattr(rows, "INTERVALS", 10**6)
    whole = report(play(tmp_path / "whole", Steady(3), faults=slow)).wall_s
    assert piecewise < 1.05 * whole
