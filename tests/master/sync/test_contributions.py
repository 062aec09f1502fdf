"""Contributions are merged whole: sums under `add` are exact for any sizes, and no worker is blamed for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gridml
from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.aggregates import Aggregate, Merge, TensorMerge
from gridml.errors import UsageError, UserCodeError
from gridml.model.graph import Graph
from gridml.protocol.push import ReplicaPart, RowValues
from master.backends.script import ScriptedLives
from master.backends.simulated_plugin import SimulatedOptions
from master.simulation.result import verify_credits
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.reader import opened
from master.store.replica import Replica
from master.store.settings import Settings
from master.store.versions import ReplicaState, Versions, initial
from master.sync.gate import MAX_STEPS
from master.sync.merger import Merger
from remote.stepped import Trainer
from tests.support.effort import examples

Array = NDArray[np.float64]
KINDS, WORKERS = 8, 4
TAILS = {
    "normal": lambda rng, n: np.floor(1000 * np.abs(rng.normal(size=n))),
    "log-normal": lambda rng, n: np.floor(1000 * rng.lognormal(0, 3, n)),
    "pareto": lambda rng, n: np.floor(1000 * rng.pareto(0.7, n)).clip(max=1e11),
    "rare": lambda rng, n: np.where(rng.random(n) < 0.002, 1e6, 0.0),
    "both signs": lambda rng, n: np.floor(1e9 * rng.standard_t(1, n)).clip(-1e12, 1e12),
}


class Total(gridml.Vertex):
    sums = gridml.array("float64", (KINDS,))
    level = gridml.array("float64", (2,))
    most = gridml.array("float64")
    aggregate = gridml.by_name({"*/sums": gridml.add(), "*/most": gridml.maximum()})


def merger_of(folder: Path) -> tuple[Merger, Replica]:
    g = Graph()
    g.add(Total, sums=np.zeros((1, KINDS)), level=np.ones((1, 2)), most=np.zeros(1))
    folder.mkdir(exist_ok=True)
    replica = Replica(g, Versions(folder / "versions"))
    merger = Merger(g, replica, WORKERS)
    state = initial(g, 0)
    merger.add_buffers(state)
    replica.start(state)
    return merger, replica


def total(sums: Array, level: float, most: float) -> ReplicaPart:
    fields = {"sums": sums[None], "level": np.full((1, 2), level), "most": np.array([most])}
    return ReplicaPart({}, {"Total": RowValues(np.array([0]), fields)})


def pushed_stream(folder: Path, tail: str, seed: int, pushes: int) -> tuple[Array, Array]:
    """Push heavy-tailed whole numbers from stale bases, by workers in random order; return (sums, expected sums).

    Each push also moves a level by a little, one in ten by far too much: only these moves are shortened.
    """
    rng = np.random.default_rng(seed)
    merger, replica = merger_of(folder)
    states = [copied(replica.state)]
    right, most = np.zeros(KINDS), 0.0
    for version in range(1, pushes + 1):
        base = states[int(rng.integers(max(0, len(states) - 4), len(states)))]
        values = TAILS[tail](rng, 100)
        right += (counted := np.bincount(rng.integers(0, KINDS, 100), values, KINDS))
        most = max(most, float(values.max()))
        old = base.rows("Total", np.array([0]))
        step = 2.0 if rng.random() < 0.1 else 1e-3
        part = total(old["sums"][0] + counted, float(old["level"][0, 0]) + step, float(values.max()))
        merge = Merge(version, 0, 100, int(rng.integers(0, 500)), WORKERS)
        merged, decision = merger.merge(part, base, merge, f"w{rng.integers(WORKERS)}", float(version))
        assert merged is not None, decision.reason
        replica.put(merged.modules, merged.rows, version)
        states.append(copied(replica.state))
    assert replica.state.arrays["Total"]["most"][0] == most
    return np.asarray(replica.state.arrays["Total"]["sums"][0]), right


def copied(state: ReplicaState) -> ReplicaState:
    columns = {name: {n: c.copy() for n, c in fields.items()} for name, fields in state.arrays.items()}
    return ReplicaState(dict(state.modules), columns)


def check_streams(folder: Path, tail: str, seed: int, pushes: int) -> None:
    sums, right = pushed_stream(folder, tail, seed, pushes)
    np.testing.assert_array_equal(sums, right)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(sorted(TAILS)), st.integers(0, 2**32 - 1), st.integers(1, 20))
def test_sums_are_exact_whatever_their_sizes(
    tmp_path_factory: pytest.TempPathFactory, tail: str, seed: int, pushes: int
) -> None:
    check_streams(tmp_path_factory.getbasetemp() / "streams", tail, seed, pushes)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=20_000, deadline=None)
@given(st.sampled_from(sorted(TAILS)), st.integers(0, 2**32 - 1), st.integers(1, 20))
def test_sums_of_20_000_streams_are_exact(
    tmp_path_factory: pytest.TempPathFactory, tail: str, seed: int, pushes: int
) -> None:
    check_streams(tmp_path_factory.getbasetemp() / "streams", tail, seed, pushes)


@pytest.mark.parametrize("rule", [gridml.add(), gridml.maximum()])
@pytest.mark.parametrize("size", [0.0, 1e-9, 1e9, 1e200])
def test_length_alone_neither_shortens_nor_refuses_a_contribution_nor_blames(
    tmp_path: Path, rule: Aggregate, size: float
) -> None:
    class Sum(gridml.Vertex):
        value = gridml.array("float64", (2,))
        aggregate = rule

    g = Graph()
    g.add(Sum, value=np.zeros((1, 2)))
    replica = Replica(g, Versions(tmp_path / "versions"))
    merger = Merger(g, replica, WORKERS)
    replica.start(initial(g, 0))
    pushes = [("a", 1.0), ("b", 1.0), ("c", 1.0)] * MAX_STEPS + [("d", size)] * 5
    for worker, value in pushes:
        part = ReplicaPart({}, {"Sum": RowValues(np.array([0]), {"value": np.full((1, 2), value)})})
        merged, decision = merger.merge(part, replica.state, Merge(1, 0, 100, 300, WORKERS), worker)
        assert merged is not None
        assert decision == (1.0, "accepted", False, False, None)
        np.testing.assert_array_equal(merged.rows["Sum"].fields["value"], [[value, value]])


@pytest.mark.parametrize(
    ("dtype", "before", "after", "largest"),
    [
        ("float64", 5.0, 3_005.0, 3000),
        ("float32", 5.0, -2_996.0, 3001),
        ("int64", 7, 3_008, 3001),
        ("uint8", 250, 4, 10),
        ("uint64", 3, 2**64 - 3_000, 3003),
    ],
)
def test_what_is_beyond_the_users_own_bound_is_refused_and_says_so(
    tmp_path: Path, dtype: str, before: float, after: float, largest: int
) -> None:
    def decision(bound: float) -> tuple[bool, str, bool, bool]:
        class Sum(gridml.Vertex):
            value = gridml.array(dtype)
            aggregate = gridml.add(bound=bound)

        g = Graph()
        g.add(Sum, value=np.array([before], dtype))
        folder = tmp_path / f"{bound}"
        folder.mkdir()
        replica = Replica(g, Versions(folder / "versions"))
        merger = Merger(g, replica, 1)
        replica.start(initial(g, 0))
        part = ReplicaPart({}, {"Sum": RowValues(np.array([0]), {"value": np.array([after], dtype)})})
        merged, found = merger.merge(part, replica.state, Merge(1, 0, 100, 0, 1), "a")
        return merged is not None, found.reason, found.flagged, found.failed

    assert decision(largest / 100)[0]
    taken, reason, flagged, failed = decision((largest - 0.5) / 100)
    assert not taken and failed and not flagged
    assert f"Sum/value: 100 vertices change an element by {largest}, and Add(bound=" in reason


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bound", [0.1, 0.3, 1 / 3, 0.7, 1.1])
def test_what_is_at_the_bound_is_taken_however_it_was_rounded(dtype: str, bound: float) -> None:
    rng = np.random.default_rng(0)
    for vertices in (32, 50, 512, 5_000):
        for before in (0.0, 17.3, 1e5):
            base = np.array([before], dtype)
            value = base.copy()
            for _ in range(vertices):
                value += np.array(bound, dtype)
            merge = Merge(1, 0, vertices, 0, 1)
            assert gridml.add(bound=bound).objection(TensorMerge(base, value, base, base.copy(), merge)) is None
            far = (base + 1.1 * bound * vertices).astype(dtype)
            if before < 1e5 or dtype == "float64":  # float32 cannot represent tenths of larger numbers
                tensor = TensorMerge(base, far, base, base.copy(), merge)
                assert gridml.add(bound=bound * (1 - 0.01 * rng.random())).objection(tensor) is not None


def test_a_bound_that_is_none_is_refused() -> None:
    for bound in (0, -1.0, float("nan"), "3", None, True):
        with pytest.raises(UsageError, match="expected a number above 0, the most that one vertex may add"):
            gridml.add(bound=bound)  # type: ignore[arg-type]


# --- in a run

SPENT = '''
"""Sums of what users spent, of which a few spend nearly all, beside a level that is averaged."""
import numpy as np
import gridml

COUNT, KINDS = 3_000, 8


def spent():
    rng = np.random.default_rng({seed})
    return rng.integers(0, KINDS, COUNT), np.floor(1000 * rng.pareto(0.7, COUNT)).clip(max=1e11)


class Total(gridml.Vertex):
    sums = gridml.array("float64", (KINDS,))
    aggregate = gridml.add({bound})


class Level(gridml.Vertex):
    value = gridml.array("float64")
    aggregate = gridml.stale_mean()


class User(gridml.Vertex):
    kind = gridml.array("int64")
    spent = gridml.array("float64")
    total = gridml.edge(Total)
    level = gridml.edge(Level)


@gridml.update(batch=50)
def add_up(users: gridml.Batch[User], total: Total, level: Level) -> None:
    total.sums += np.bincount(users.kind, users.spent, KINDS)
    level.value += 1e-3 * users.spent.mean()


def graph():
    kind, money = spent()
    g = gridml.Graph()
    total, level = g.add(Total, sums=np.zeros((1, KINDS))), g.add(Level, value=np.ones(1))
    g.add(User, kind=kind, spent=money, total=total, level=level)
    return g


def evaluate(total: Total):
    return {{"sums": total.sums.tolist()}}


program = gridml.Program(graph, add_up, evaluate, epochs=2)
'''
COSTS = Costs(exec_s=0.01, start_s=0.5, push_s=0.02, boot_s=1.0)


def play(folder: Path, seed: int, bound: str = "") -> Path:
    """Play a run of four workers that live 8 s on average."""
    program = folder / "spent.py"
    program.write_text(SPENT.format(seed=seed, bound=bound))
    scenario = Scenario(
        ScriptedLives(WORKERS, Exponential(8.0), seed), COSTS, MachineSpeeds(sigma=0.5), travel_s=0.05, seed=seed
    )
    chosen = Settings(
        program, "simulated", WORKERS, seed=seed, steps_each=0, push_every=50, options=SimulatedOptions(None, None)
    )
    play_scenario(chosen, scenario, folder / "run", trainer=Trainer(program, COSTS, seed))
    return folder / "run"


@pytest.mark.parametrize("seed", range(4))
def test_sums_are_exact_under_kills_and_what_was_shortened_beside_them_is_counted(tmp_path: Path, seed: int) -> None:
    run = play(tmp_path, seed)
    verify_credits(run)
    rng = np.random.default_rng(seed)
    right = np.bincount(rng.integers(0, KINDS, 3_000), np.floor(1000 * rng.pareto(0.7, 3_000)).clip(max=1e11), KINDS)
    with opened(run) as ledger:
        (kills,) = ledger.execute("SELECT count(*) FROM workers WHERE state IN ('evicted', 'lost')").fetchone()
        (metrics,) = ledger.execute("SELECT metrics FROM epochs ORDER BY epoch DESC").fetchone()
        counted = dict(ledger.execute("SELECT how, sum(pushes) FROM altered GROUP BY how"))
        (events,) = ledger.execute("SELECT count(*) FROM events WHERE topic = 'shortened'").fetchone()
    assert kills > 5
    assert json.loads(metrics)["sums"] == (2 * right).tolist()
    assert counted["shortened"] > 0, "the level's steps have heavy tails, too"
    assert 0 < events <= counted["shortened"]


def test_a_bound_that_the_data_exceed_ends_the_run_and_names_field_and_bound(tmp_path: Path) -> None:
    with pytest.raises(
        UserCodeError, match=r"Total/sums: \d+ vertices change an element by .*Add\(bound=100\.0\) allows"
    ):
        play(tmp_path, 0, bound="bound=100.0")
