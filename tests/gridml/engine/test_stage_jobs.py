"""Jobs of stages: how work is cut, and that the number of threads changes no bit of the result."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import pytest

from gridml.codegen.blocks import border_finder
from gridml.codegen.kernel import kernel_of
from gridml.engine import stage_jobs
from gridml.engine.stage_jobs import SIDE, Division, StageJob, diagonals, divisions, do_all, groups, limits_of
from gridml.model.loading import load
from tests.support.stage_programs import EDGE, Write, stages_in, trained

LINKS = "user: User, ratings: gridml.Links[Item], at: At"
DRAWN, ASCENDING = "rng.integers(0, 7, offsets[-1])", "np.concatenate([np.sort(rng.integers(0, 7, n)) for n in sizes])"
BOTH = (
    "error = rating.weight - at.rate\nfor f in range(SIZE):\n    error -= user.p[f] * item.q[f]\n"
    "at.total += error * error\nat.worst = max(at.worst, error)\nat.by_size[user.age] += 1\nat.hold[0] += error\n"
    "at.count[user.age] += 1\nfor f in range(SIZE):\n    p, q = user.p[f], item.q[f]\n"
    "    user.p[f] = p + 0.1 * error * q\n    item.q[f] = q + 0.1 * error * p"
)
OWN = (
    "at.hold[0] = user.p[0]\nfor rating in ratings:\n    at.hold[0] += rating.weight * rating.end.q[0]\n"
    "    at.total += at.hold[0] / 3.0\n    at.count[user.age] += 2\nuser.bias = at.hold[0] + gridml.uniform()"
)
KEPT = OWN.replace("at.hold[0] =", "at.hold[0] +=")  # working memory of one vertex is read by the next
TWICE = OWN.replace("= at.hold[0] + gridml", "= too.hold[0] + gridml")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts the work of a few edges into jobs."""
    for name in ("MIN_RUN_EDGES", "MIN_RUN_ELEMENTS", "MIN_BLOCKED_EDGES", "MIN_BLOCKED_DEGREE"):
        monkeypatch.setattr(stage_jobs, name, 1)


def ascending(path: Path) -> Path:
    """Let the edges of every user ascend by their end."""
    text = path.read_text().replace(DRAWN, ASCENDING)
    path.write_text(text.replace("    rated = gridml.csr", "    sizes = np.diff(offsets)\n    rated = gridml.csr"))
    return path


@pytest.mark.parametrize(
    ("told", "threads"),
    [
        (None, 1),
        ("1", 1),
        ("4", 4),
        (" 2,1", 2),
        ("0", 1),
        ("", 1),
        ("all", 1),
        ("-3", 1),
        ("400", stage_jobs.MAX_RUNS),
    ],
)
def test_threads_are_those_that_the_worker_is_told(told: str | None, threads: int) -> None:
    assert stage_jobs.threads_of(told)[0] == threads


@pytest.mark.parametrize(
    ("body", "signature", "decorator", "division", "reason"),
    [
        (BOTH, EDGE, "exchange(over=User)", Division.BLOCKS, r"item\.q is written in place"),
        (BOTH + "\nuser.bias += gridml.uniform()", EDGE, "exchange(over=User)", Division.WHOLE, "draws"),
        (BOTH, EDGE, 'exchange(over=User, when="bias")', Division.BLOCKS, "in place"),
        (BOTH + "\nuser.bias = 0.0", EDGE, 'exchange(over=User, when="bias")', Division.WHOLE, "writes bias"),
        ("user.bias += item.q[0]\nat.total += rating.weight", EDGE, "exchange(over=User)", Division.RUNS, "no row"),
        ("word.count[0, 0] += 1", "user: User, word: Word", "exchange(over=User)", Division.RUNS, "no row"),
        (OWN, LINKS, "exchange(over=User)", Division.RUNS, "no row that two vertices share"),
        ("for r in ratings:\n    r.end.q[0] += 1.0", LINKS, "exchange(over=User)", Division.WHOLE, r"r\.end\.q"),
    ],
)  # fmt: skip
def test_what_a_stage_writes_says_how_its_work_is_cut(
    write: Write, body: str, signature: str, decorator: str, division: Division, reason: str
) -> None:
    (stage,) = stages_in(load(write(body, signature, decorator)))
    (found,) = divisions([(stage, kernel_of(stage))])
    assert found[0] is division
    assert re.search(reason, found[1]), found[1]


def test_working_memory_of_several_stages_is_that_of_one_job(write: Write) -> None:
    first = '@gridml.apply(Item, at="mirror")\ndef first(item: Item, at: At) -> None:\n    {}item.share[0] = 1.0\n\n\n'
    for line, division in (("", Division.RUNS), ("at.hold[0] = item.q[0]\n    ", Division.WHOLE)):
        path = write("user.bias += at.hold[0] + item.q[0]", before=first.format(line), stages="first, stage")
        found = divisions([(stage, kernel_of(stage)) for stage in stages_in(load(path))])
        assert [found[0][0], found[1][0]] == [division, Division.RUNS]  # the second only reads what the first has left
    assert found[0][1] == "at.hold is working memory of several stages"


def test_runs_and_blocks_need_enough_work() -> None:
    assert [stage_jobs.runs_of(work, 100)[0] for work in (0, 199, 200, 10**9)] == [1, 1, 2, stage_jobs.MAX_RUNS]
    edges, degree = stage_jobs.MIN_BLOCKED_EDGES, stage_jobs.MIN_BLOCKED_DEGREE
    assert stage_jobs.is_blocked(edges, edges // degree)[0]
    assert "fewer than 1,048,576" in stage_jobs.is_blocked(edges - 1, 10)[1]
    assert "edges a vertex" in stage_jobs.is_blocked(edges, edges // degree + 1)[1]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_have_every_edge_once_and_those_of_a_diagonal_share_no_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 30, 40) * rng.integers(0, 2, 40)
    offsets = np.cumsum([0, *degrees]).astype(np.int64)
    ends = np.concatenate([np.sort(rng.integers(0, 50, n) ** 2 // 50) for n in degrees]).astype(np.int32)
    start, stop = sorted(rng.choice(41, 2, replace=False))
    borders = np.zeros((SIDE + 1, 40), np.int64)
    limits = limits_of(ends[offsets[start] : offsets[stop]])
    assert border_finder()(start, stop, offsets, ends, limits, borders)
    seen: list[int] = []
    for jobs in diagonals(start, stop, offsets, ends, borders):
        touched: list[set[tuple[str, int]]] = []
        for first, last, begins, stops, _ in (job.span for job in jobs):
            edges = [(x, e) for x in range(first, last) for e in range(begins[x], stops[x])]
            seen += [e for _, e in edges]
            touched.append({("source", x) for x, _ in edges} | {("end", int(ends[e])) for _, e in edges})
        assert len(set().union(*touched)) == sum(map(len, touched))
        assert [job.memory for job in jobs] == list(range(SIDE))
    assert sorted(seen) == list(range(offsets[start], offsets[stop]))


def test_groups_have_about_as_many_edges_each() -> None:
    offsets = np.cumsum([0, *np.random.default_rng(0).integers(0, 9, 1_000)])
    borders = groups(offsets, 100, 900, 4)
    assert (borders[0], borders[-1]) == (100, 900)
    edges = np.diff(offsets[borders])
    assert edges.max() - edges.min() <= 2 * 9
    assert groups(np.zeros(6, np.int64), 1, 3, 4)[::4] == [1, 3]


def test_ends_part_where_each_group_has_about_as_many_edges() -> None:
    ends = (1_000 * np.random.default_rng(0).random(50_000) ** 2).astype(np.int32)
    counts = np.bincount(np.searchsorted(limits_of(ends), ends, side="right"))
    assert counts.min() > 0.9 / SIDE * len(ends)
    assert limits_of(np.empty(0, np.int32)).tolist() == [0] * (SIDE - 1)


@pytest.mark.parametrize("seed", range(30))
def test_ends_ascend_where_those_of_every_row_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [sorted(rng.integers(0, 9, rng.integers(0, 4)).tolist()) for _ in range(30)]
    if seed % 2:
        rows[rng.integers(30)] += [8, rng.integers(7)]
    offsets, ends = np.cumsum([0, *map(len, rows)]), np.array([e for row in rows for e in row], np.int32)
    for start in range(0, 30, 3):
        for stop in range(start, 31, 5):
            wanted = all(row == sorted(row) for row in rows[start:stop])
            borders = np.zeros((SIDE + 1, 30), np.int64)
            assert border_finder()(start, stop, offsets, ends, np.full(SIDE - 1, 4, np.int32), borders) == wanted


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("body", "signature"), [(BOTH, EDGE), (OWN, LINKS), (KEPT, LINKS), (TWICE, f"{LINKS}, too: At")]
)
def test_threads_and_plain_python_change_no_bit(write: Write, body: str, signature: str) -> None:
    path = ascending(write(body, signature))
    plain = trained(path, plain=True)
    for threads in (1, 2, 4):
        found = trained(path, threads=threads)
        assert {name: values.tobytes() for name, values in found.items()} == {
            name: values.tobytes() for name, values in plain.items()
        }


@pytest.mark.usefixtures("small")
def test_draws_derived_fields_and_logs_are_the_same_on_threads(programs: Path) -> None:
    path = programs / "topics.py"
    whole = trained(path, count=24, size=8, plain=True)
    for threads in (1, 2, 4):
        found = trained(path, count=24, size=8, threads=threads)
        assert all(found[name].tobytes() == values.tobytes() for name, values in whole.items())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("is_sorted", [True, False])
def test_edges_are_cut_into_blocks_where_they_ascend(
    write: Write, monkeypatch: pytest.MonkeyPatch, is_sorted: bool
) -> None:
    jobs: list[StageJob] = []
    cut = stage_jobs.diagonals
    monkeypatch.setattr(stage_jobs, "diagonals", lambda *given: [jobs.extend(each) or each for each in cut(*given)])
    path = write(BOTH)
    found = trained(ascending(path) if is_sorted else path)
    assert len(jobs) == (SIDE * SIDE * 4 if is_sorted else 0)
    assert found["At.by_size"].sum() == len(load(path).build(path).tables["User"].edges["rated"].targets)


def test_calls_are_all_made_and_the_error_of_one_is_raised() -> None:
    made: list[int] = []
    met = threading.Barrier(2)

    def call(number: int) -> None:
        if number < 2:
            met.wait(60)  # so that two threads have come
        if number == 5:
            raise ValueError("the fifth")
        made.append(number)

    calls = [lambda number=number: call(number) for number in range(9)]
    with pytest.raises(ValueError, match="the fifth"):
        do_all(calls, 2)
    made.clear()
    do_all(calls[2:5] + calls[6:], 1)
    assert made == [2, 3, 4, 6, 7, 8]
    assert threading.active_count() >= 1
