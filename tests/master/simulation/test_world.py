"""Simulated runs finish with exact credits, and a ledger that depends on the seed alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from chunk_model.traces import TraceEvent
from gridml.errors import LedgerError, RunError
from gridml.protocol.messages import NO_PUSH
from master.backends.script import Replay, Script, ScriptedLives, Steady
from master.simulation import cost_only_worker
from master.simulation.faulty_network import Chances
from master.simulation.result import dump, fingerprint, verify_credits
from master.simulation.scenario import POINTS, Absent, MachineSpeeds, Scenario, Storms
from master.simulation.world import Inline, MasterKilled, World, play_scenario
from master.store.reader import connect, opened
from master.store.settings import Settings
from master.views.report import report
from remote.stepped import Trainer
from tests.support.effort import first

ROOT = Path(__file__).resolve().parents[3]
COSTS = Costs(exec_s=0.5, start_s=2.0, push_s=0.1, boot_s=1.0)
FAULTS = Chances(lose=0.05, repeat=0.05, truncate=0.03, corrupt=0.03, delay_s=5.0)
WORKERS, VERTICES, EPOCHS = 30, 4000, 2
BAD = Scenario(
    Storms(Absent(ScriptedLives(WORKERS, Exponential(60.0), seed=3, gap_s=5.0, grace_s=10.0), 0.1, 3), 200.0, 0.5, 3),
    COSTS,
    MachineSpeeds(0.2, 4.0, 0.4),
    FAULTS,
    crash_every_s=60.0,
    turn_s=0.5,
    limit_s=1e5,
    seed=3,
)


def dumped(root: Path) -> list[str]:
    with opened(root) as ledger:
        return list(dump(ledger))


def played(folder: Path, scenario: Scenario, epochs: int = EPOCHS, **chosen: object) -> tuple[World, Path]:
    folder.mkdir(exist_ok=True)
    program = folder / "costs.py"
    program.write_text(cost_only_worker.source(VERTICES, epochs))
    settings = Settings(program, backend="simulated", workers=WORKERS, **chosen)  # type: ignore[arg-type]
    return play_scenario(
        settings, scenario, folder / "run", killed=lambda: verify_credits(folder / "run")
    ), folder / "run"


def test_a_run_without_faults_takes_as_long_as_its_costs_say(tmp_path: Path) -> None:
    world, root = played(tmp_path, Scenario(Steady(1), Costs(exec_s=0.5)), chunk=4000, push_every=1000)
    assert verify_credits(root).credited == VERTICES * EPOCHS
    trained = VERTICES * EPOCHS * 0.5
    assert trained <= report(root).wall_s <= trained * 1.01
    assert world.pool.tally.kills == 0
    assert world.masters == 1
    assert world.workers.traffic.sent > 8
    assert world.workers.traffic.lost == 0


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path]:
    """A run with faults of every kind."""
    return played(tmp_path_factory.mktemp("bad"), BAD)


def test_with_every_fault_at_once_it_finishes_and_is_exact(bad: tuple[World, Path]) -> None:
    world, root = bad
    exact = verify_credits(root)
    assert (exact.credited, exact.finished) == (VERTICES * EPOCHS, EPOCHS)
    assert world.pool.tally.kills > 50
    assert 0 < world.pool.tally.graceful < world.pool.tally.kills
    assert world.masters > 3
    assert world.workers.traffic.lost > 0
    assert world.master_s > 0
    assert world.world_s > 0


def test_the_seed_decides_and_nothing_else(bad: tuple[World, Path], tmp_path: Path) -> None:
    assert fingerprint(bad[1]) == fingerprint(played(tmp_path / "a longer name", BAD)[1])


# Points that this program never reaches: the kill of a master comes a minute later, at another point. One of
# them stands for all.
UNREACHED = "publish", "after-patch", "after-base", "before-base-commit", "after-base-commit"


REACHED = [point for point in POINTS if point not in UNREACHED]


@pytest.mark.parametrize(
    "points", first(3, [*(REACHED[k::3] for k in range(3)), *([point] for point in (*REACHED, UNREACHED[0]))])
)
def test_a_master_that_is_killed_at_any_point_is_followed_by_one_that_goes_on(
    tmp_path: Path, points: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice at each of several points, or several times at one: after a while, and as soon as it has come back."""
    kills = max(6, 2 * len(points))
    killed: list[str] = []

    def crash(scenario: Scenario, k: int) -> tuple[float, str] | None:
        return (0.0 if k // len(points) % 2 else 20.0, points[k % len(points)]) if k < kills else None

    monkeypatch.setattr(Scenario, "crash", crash)
    reached = World._reached

    def heartbeat(world: World, at: str) -> None:
        try:
            reached(world, at)
        except MasterKilled:
            killed.append(at)
            raise

    monkeypatch.setattr(World, "_reached", heartbeat)
    epochs = 2 * EPOCHS if points[0] in UNREACHED else EPOCHS
    world, root = played(tmp_path, replace(BAD, crash_every_s=1.0), epochs)
    assert verify_credits(root).credited == VERTICES * epochs
    assert world.masters == len(killed) + 1
    if points[0] in UNREACHED:
        assert len(killed) >= 4
    else:
        assert len(killed) == kills and {*points} <= {*killed}


@pytest.mark.parametrize(
    "script",
    [
        Steady(WORKERS),
        ScriptedLives(WORKERS, Exponential(40.0), late=20),
        Replay(
            tuple(
                TraceEvent(float(at_s), f"n{node}", at_s % 100 == 0)
                for at_s in range(0, 10_050, 50)
                for node in range(WORKERS)
            )
        ),
    ],
)
def test_machines_of_every_kind_of_script(tmp_path: Path, script: Script) -> None:
    _, root = played(tmp_path, Scenario(script, COSTS, faults=FAULTS, turn_s=0.5))
    assert verify_credits(root).credited == VERTICES * EPOCHS


def test_workers_that_leave_after_a_chunk_are_replaced(tmp_path: Path) -> None:
    world, root = played(tmp_path, Scenario(Steady(WORKERS), COSTS, chunks_per_job=1, turn_s=0.5), chunk=100)
    assert verify_credits(root).credited == VERTICES * EPOCHS
    assert world.pool.tally.kills == 0
    assert sum(line.startswith("('w") for line in dumped(root)) >= VERTICES * EPOCHS / 100


def test_workers_with_a_slow_f_push_no_oftener_than_their_master_can_merge(tmp_path: Path) -> None:
    """30 workers that would push by the clock, every 30 s, and a master that needs 2 s for each."""
    costs = Costs(exec_s=10.0, push_s=0.1)
    _, root = played(tmp_path, Scenario(Steady(WORKERS), costs, turn_s=0.5, merge_s=2.0), 1)
    with opened(root) as ledger:
        pushes = ledger.execute("SELECT sum(pushes) FROM versions").fetchone()[0]
    assert pushes * 2.0 < 0.75 * report(root).wall_s


def test_chunks_of_a_size_that_was_asked_for_without_pushes_are_that_size_to_the_end(tmp_path: Path) -> None:
    """A job each, killed without a warning, on machines of unequal speed: what idles must not cut what others hold."""
    scenario = Scenario(
        ScriptedLives(WORKERS, Exponential(100.0), seed=1, graceful_share=0.0),
        COSTS,
        MachineSpeeds(0.12),
        turn_s=1.0,
        chunks_per_job=1,
    )
    world, root = played(tmp_path, scenario, 1, chunk=130, push_every=NO_PUSH)
    assert world.pool.tally.kills > 10
    with opened(root) as ledger:
        sizes = {stop - start for start, stop in ledger.execute("SELECT start, stop FROM leases")}
        pushes = ledger.execute("SELECT sum(pushes) FROM versions").fetchone()[0]
    assert sizes == {130, VERTICES % 130}
    assert pushes == -(-VERTICES // 130)


def test_merging_keeps_the_master_busy_for_as_long_as_it_takes(tmp_path: Path) -> None:
    free = Scenario(Steady(WORKERS), COSTS, turn_s=0.1)
    walls_s, pushes = [], []
    for name, scenario in (("free", free), ("dear", replace(free, merge_s=0.5))):
        _, root = played(tmp_path / name, scenario, 1, push_every=5)
        walls_s.append(report(root).wall_s)
        with opened(root) as ledger:
            pushes.append(ledger.execute("SELECT sum(pushes) FROM versions").fetchone()[0])
    assert pushes[0] * 0.5 > 2 * walls_s[0]  # more than a master could merge that takes half a second for each
    assert (pushes[1] - WORKERS) * 0.5 <= walls_s[1]  # the last pushes are answered before their merging time is over


def test_a_master_that_merges_slowly_asks_for_fewer_pushes(tmp_path: Path) -> None:
    free, intervals = Scenario(Steady(WORKERS), COSTS, turn_s=0.5), []
    for name, scenario in (("free", free), ("dear", replace(free, merge_s=1.0))):
        _, root = played(tmp_path / name, scenario, 1)
        with opened(root) as ledger:
            intervals.append(ledger.execute("SELECT max(push_every) FROM workers").fetchone()[0])
    assert intervals[1] > intervals[0]


@pytest.mark.parametrize("trains", [False, True])
def test_every_worker_says_what_machine_it_is_on(tmp_path: Path, programs: Path, trains: bool) -> None:
    program, trainer = tmp_path / "costs.py", None
    if trains:
        program, trainer = programs / "tally.py", Trainer(programs / "tally.py", COSTS)
    else:
        program.write_text(cost_only_worker.source(200, 1))
    machines, speeds = Steady(6), MachineSpeeds(0.5, 4.0, 0.3)
    settings = Settings(program, backend="simulated", workers=6, chunk=2)
    play_scenario(settings, Scenario(machines, COSTS, speeds, FAULTS, seed=2), tmp_path / "run", trainer=trainer)
    with contextlib.closing(connect(tmp_path / "run")) as ledger:
        reported = dict(ledger.execute("SELECT machine, kind FROM workers WHERE kind IS NOT NULL"))
    assert reported == {machines.machine(slot): speeds.of(slot, 2).kind for slot in range(6)}
    assert len({*reported.values()}) == 2


@pytest.mark.parametrize("read", [fingerprint, verify_credits])
def test_a_ledger_that_is_damaged_is_said_to_be(tmp_path: Path, read: Callable[[Path], object]) -> None:
    _, root = played(tmp_path, Scenario(Steady(2), COSTS))
    (root / "ledger.db").write_bytes((root / "ledger.db").read_bytes()[:4096])
    with pytest.raises(LedgerError, match=r"ledger\.db cannot be read: .*gridml resume"):
        read(root)
    with pytest.raises(LedgerError, match="is not a run"):
        read(tmp_path)


def test_when_no_machine_comes_any_more_it_says_so(tmp_path: Path) -> None:
    gone = Replay((TraceEvent(0.0, "a", True), TraceEvent(100.0, "a", False)))
    with pytest.raises(RunError, match="no machine is left"):
        played(tmp_path, Scenario(gone, COSTS))
    assert verify_credits(tmp_path / "run").finished == 0


def test_when_lives_are_too_short_to_train_anything_it_says_so(tmp_path: Path) -> None:
    short = Scenario(
        ScriptedLives(WORKERS, Exponential(1.0)), Costs(exec_s=0.5, start_s=50.0), turn_s=0.5, limit_s=500.0
    )
    with pytest.raises(RunError, match=r"has not finished after 5[0-9][0-9] s: lives may be too short"):
        played(tmp_path, short)


def test_a_dump_has_every_row_in_its_order(tmp_path: Path) -> None:
    _, root = played(tmp_path, Scenario(Steady(2), COSTS))
    lines = dumped(root)
    tables = [line for line in lines if line.startswith("-- ")]
    assert tables == sorted(tables)
    assert {"-- credits", "-- epochs", "-- leases", "-- run", "-- versions", "-- workers"} <= {*tables}
    assert len(lines) - len(tables) > 50
    assert not any(str(tmp_path) in line for line in lines)


def test_inline_does_it_at_once_and_keeps_what_was_raised() -> None:
    assert Inline().submit(lambda: 3).result() == 3
    with pytest.raises(ZeroDivisionError):
        Inline().submit(lambda: 1 / 0).result()


SCRIPT = """
import sys
from pathlib import Path
from chunk_model.goodput import Costs
from chunk_model.families import Exponential
from master.simulation.faulty_network import Chances
from master.backends.script import ScriptedLives
from master.store.settings import Settings
from master.simulation import cost_only_worker
from master.simulation.result import fingerprint
from master.simulation.scenario import Scenario, Storms
from master.simulation.world import play_scenario
from remote.stepped import Trainer

folder, program, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
costs = Costs(exec_s=0.1, start_s=1.0, push_s=0.05)
script = Storms(ScriptedLives(8, Exponential(15.0), seed=seed, grace_s=5.0), 60.0, 0.5, seed)
faults = Chances(lose=0.05, repeat=0.05, truncate=0.03, corrupt=0.03, delay_s=2.0)
scenario = Scenario(script, costs, faults=faults, crash_every_s=20.0, restart_s=3.0, turn_s=0.2, seed=seed)
if program == "cost":
    source = folder / "costs.py"
    source.write_text(cost_only_worker.source(3000, 2))
    trainer = None
else:
    source = Path(program)
    trainer = Trainer(source, costs, seed)
settings = Settings(source, backend="simulated", workers=8, seed=seed, steps_each=0)
world = play_scenario(settings, scenario, folder / "run", trainer=trainer)
print(fingerprint(folder / "run"), world.pool.tally.kills, world.masters)
"""


def fingerprint_in_a_process_of_its_own(folder: Path, program: str, seed: int, hash_seed: str) -> list[str]:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), program, str(seed)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.real
@pytest.mark.parametrize("program", ["cost", "counts", "perceptron", "books"])
def test_the_same_seed_gives_the_same_ledger_in_another_process(tmp_path: Path, program: str, programs: Path) -> None:
    """Whatever the order of hashes, the path and the clock on the wall; in both modes, with faults and crashes."""
    source = program if program == "cost" else str(programs / f"{program}.py")
    one = fingerprint_in_a_process_of_its_own(tmp_path / "one", source, 1, "1")
    two = fingerprint_in_a_process_of_its_own(tmp_path / "the other", source, 1, "4242")
    assert one == two
    assert program == "books" or (int(one[1]) > 10 and int(one[2]) > 1)  # workers and masters were killed
    if program == "cost":
        assert fingerprint_in_a_process_of_its_own(tmp_path / "another", source, 2, "1")[0] != one[0]
