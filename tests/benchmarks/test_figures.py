"""Figures in README, docs/results.md and other pages agree with benchmarks/results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from benchmarks.averaging.pacing import ADDED, BEFORE
from benchmarks.graph_programs.lines import EXAMPLES, PEERS, counted
from benchmarks.placement.peers import ALL_PEERS
from benchmarks.table import RESULTS

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, object]


def rows(name: str) -> list[Row]:
    found: list[Row] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return found


def cell(name: str, column: str, **where: object) -> float:
    """Return the number in the one row whose other columns have the given values."""
    (row,) = [row for row in rows(name) if all(row[key] == value for key, value in where.items())]
    return float(str(row[column]))


def total(name: str, column: str, which: Callable[[Row], bool] = lambda row: True) -> float:
    return sum(float(str(row[column])) for row in rows(name) if which(row))


def extremes(name: str, column: str, **where: Collection[object]) -> tuple[float, float]:
    """Return the lowest and the highest number of the rows whose other columns have one of the given values."""
    found = [row for row in rows(name) if column in row and all(row[key] in values for key, values in where.items())]
    numbers = [float(str(row[column])) for row in found]
    return min(numbers), max(numbers)


def faster(task: str, workers: int) -> float:
    return cell("averaging_time", "faster", task=task, W=workers)


def ghosts_left() -> list[float]:
    """Return the ghosts of placed parts of SNAP's graphs over those of parts in the file's order."""
    where = [{"graph": graph, "method": "multilevel"} for graph in ("facebook", "enron", "slashdot")]
    return [cell("graph_placed", "ghosts a part", **each) / cell("graph_placed", "in order", **each) for each in where]


DRAWN = ("rank 30, noise 1, flat", "rank 6, noise .4, steep")
LENET, BIBLE, MOVIES = "MNIST, LeNet", "Bible, transformer", "MovieLens, factorisation"
FIGURES: list[tuple[str, Callable[[], tuple[float, ...]]]] = [
    (
        r"a placed part of linked vertices reads (\d+) to (\d+)% fewer of other parts' on three of SNAP's graphs",
        lambda: (
            round(100 * (1 - max(shares := ghosts_left()))),
            round(100 * (1 - min(shares))),
        ),
    ),
    (
        r"MNIST reached ([\d.]+)% in ([\d.]+) minutes through (\d+) evictions, (\d+) of them without",
        lambda: tuple(
            cell("condor_evictions", column, carrier="chirp")
            for column in ("accuracy %", "min", "evictions", "without")
        ),
    ),
    (
        r"LeNet on MNIST ends at ([\d.]+)% instead of ([\d.]+)% after three epochs",
        lambda: tuple(cell("kills", "accuracy", rule="stale_mean", workers=n, kills="no") for n in (4, 1)),
    ),
    (
        r"\(([\d.]+)% instead of ([\d.]+)% on 6,000 images of MNIST\)",
        lambda: tuple(cell("averaging", column, task=LENET, W=4) for column in ("workers", "loop")),
    ),
    (
        r"but for one case of four, ([\d.]+) s instead of ([\d.]+) s",
        lambda: tuple(cell("averaging_real", column, task=BIBLE, killed="yes") for column in ("real s", "simulated s")),
    ),
    (
        r"([\d.]+) times sooner with 4 workers, ([\d.]+) times with 16, ([\d.]+) times with 64; "
        r"LeNet on MNIST ([\d.]+) times with 4, a transformer ([\d.]+) times",
        lambda: (*(faster(MOVIES, n) for n in (4, 16, 64)), faster(LENET, 4), faster(BIBLE, 4)),
    ),
    (r"([\d.,]+) million simulated kills", lambda: (total("campaign", "kills") / 1e6,)),
    (
        r"([\d,]+) kills of the master and (\d+) power cuts: every run that ended is exact",
        lambda: (
            total("crashes", "times", lambda row: str(row["what"]).startswith("SIGKILL")),
            total("crashes", "times", lambda row: str(row["what"]).startswith("power cut")),
        ),
    ),
    (r"([\d,]+) damages to the master's files: none", lambda: (total("disks", "times"),)),
    (
        r"of its ridges\) in ([\d.]+) to ([\d.]+) of .* and in ([\d.]+) to ([\d.]+) on MovieLens-100k; "
        r"with a master's share in ([\d.]+) to ([\d.]+), and ([\d.]+) to ([\d.]+)\.",
        lambda: (
            *extremes("graph_libmf", "gridml/libmf", ratings=DRAWN),
            *extremes("graph_libmf", "gridml/libmf", ratings=("MovieLens-100k",)),
            *extremes("graph_libmf", "with a master", ratings=DRAWN),
            *extremes("graph_libmf", "with a master", ratings=("MovieLens-100k",)),
        ),
    ),
    (
        r"with 1,000 topics one gridml worker took ([\d.]+) to ([\d.]+) of .* with 100 topics ([\d.]+) to ([\d.]+) on "
        r"the Bible, and on reviews of films ([\d.]+) to ([\d.]+) to its",
        lambda: (
            *extremes("graph_tomotopy", "gridml/tomotopy", topics=(1_000,)),
            *extremes("graph_tomotopy", "gridml/tomotopy", topics=(100,), texts=("Bible",)),
            *extremes("graph_tomotopy", "gridml/tomotopy", topics=(100,), texts=("films",)),
        ),
    ),
]


IN_README: list[tuple[str, Callable[[], tuple[float, ...]]]] = [
    (
        r"([\d.]+)% after (\d+) evictions; ([\d,]+) examples credited, (\d+) twice, (\d+) lost",
        lambda: tuple(
            cell("condor_evictions", column, carrier="chirp")
            for column in ("accuracy %", "evictions", "credited", "duplicated", "lost")
        ),
    ),
    (r"([\d,]+) simulated kills", lambda: (total("campaign", "kills"),)),
    (
        r"killed ([\d,]+) times, and (\d+) power cuts",
        lambda: (
            total("crashes", "times", lambda row: str(row["what"]).startswith("SIGKILL")),
            total("crashes", "times", lambda row: str(row["what"]).startswith("power cut")),
        ),
    ),
    (
        r"within ([\d.]+)% \(medians\)",
        lambda: (max(abs(float(str(row["off"]).rstrip("%"))) for row in rows("local_goodput")),),
    ),
    (
        r"two workers against two loops on the same two cores \| ([\d.]+) times, ([\d.]+) times",
        lambda: tuple(cell("overhead", "ratio", processes=number) for number in (1, 2)),
    ),
]


def inferred(*hows: str) -> tuple[float, ...]:
    return tuple(cell("inference", "error", how=how) for how in hows)


def from_file(*columns: str) -> tuple[float, ...]:
    return tuple(cell("graph_files", each, how="graph_from", edges=64_000_000) for each in columns)


IN_OTHERS: list[tuple[str, str, Callable[[], tuple[float, ...]]]] = [
    (
        "docs/mf.md",
        r"with an RMSE of ([\d.]+); .* part of the training it is ([\d.]+), .* film alone ([\d.]+) .* ten \(([\d.]+)\)",
        lambda: inferred("inferred, 10 passes", "together", "mean and bias of the item", "inferred, 100 passes"),
    ),
    (
        "docs/lda.md",
        r"maximisation \| (\d+) \| .* draw after 20 passes \| (\d+) \| .* 50 copies after 20 passes \| (\d+) \|",
        lambda: inferred(
            "expectation and maximisation", "inferred, 20 passes", "inferred, 20 passes, mean of 50 copies"
        ),
    ),
    (
        "docs/data.md",
        r"Reading 64 million ratings, a file of ([\d,]+) MB in random order, took (\d+) MB .* and (\d+) CPU-s",
        lambda: from_file("file MB", "peak MB", "CPU-s"),
    ),
    (
        "docs/results.md",
        r"reads 64 million ratings, ([\d,]+) MB of text, in (\d+) MB of memory",
        lambda: from_file("file MB", "peak MB"),
    ),
]


def prose(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def same(said: str, measured: float) -> bool:
    """Return True if a written number is the measured one, rounded to as many digits."""
    digits = len(said.partition(".")[2])
    return abs(float(said.replace(",", "")) - measured) <= 0.5 * 10.0**-digits + 1e-9


@pytest.mark.parametrize(
    ("page", "pattern", "measured"),
    [("docs/results.md", *figure) for figure in FIGURES] + [("README.md", *figure) for figure in IN_README] + IN_OTHERS,
)
def test_a_page_says_what_was_measured(page: str, pattern: str, measured: Callable[[], tuple[float, ...]]) -> None:
    found = re.search(pattern, prose(page))
    assert found is not None, "the sentence is another one now: mend the test"
    pairs = list(zip(found.groups(), measured(), strict=True))
    assert all(same(said, number) for said, number in pairs), pairs


def test_what_is_said_of_kills_and_goodput_holds() -> None:
    killed = [row for row in rows("kills") if row["kills"] == "yes"]
    assert all(float(str(row["loss"])) < float(str(row["sd"])) for row in killed)
    assert total("crashes", "others") == total("disks", "silently wrong") == total("disks", "others") == 0
    for row in rows("local_goodput"):
        assert abs(float(str(row["off"]).rstrip("%"))) <= 2
        assert all(abs(float(end.rstrip("%"))) <= 5 for end in str(row["range"]).split(" to "))


def test_the_table_of_what_workers_are_worth_is_the_measured_one() -> None:
    table = next(table for table in tables("averaging.md") if table[0][:2] == ["task", "W"])
    measured = rows("averaging")
    task, seen = "", 0
    for line in table[1:]:
        task = line[0] or task
        (row,) = [row for row in measured if same_task(task, str(row["task"])) and row["W"] == int(line[1])]
        columns = ("asked", "loop", "loop × W", "workers", "killed", "same time", "faster")
        for said, column in zip(line[2:], columns, strict=True):
            number = row[column]
            assert (said == "–") == (number is None), (line, column)
            assert number is None or same(said, float(str(number))), (line, column, number)
        seen += 1
    assert seen == len(measured)


def test_the_table_of_added_steps_is_the_measured_one() -> None:
    _, *lines = next(table for table in tables("averaging.md") if table[0][:2] == ["task", "loop"])
    measured = {(str(row["task"]), row["W"]): row for row in rows("averaging_pacing")}
    for task, loop, four, faster, averaged, sixteen, faster_still in lines:
        written = re.sub(r" \([\d,]+\)", "", task)
        name = max((known for known, _ in measured if written.startswith(known)), key=len)
        few, many = measured[name, 4], measured[name, 16]
        columns = ((few, "loop", loop), (few, ADDED, four), (many, ADDED, sixteen))
        columns += ((few, "faster, added", faster), (many, "faster, added", faster_still))
        if BEFORE in few:
            columns += ((few, BEFORE, averaged),)
        for row, column, said in columns:
            assert same(said, float(str(row[column]).partition(" ")[0])), (task, column, said, row[column])
    assert 2 * len(lines) == len(measured)


def test_the_table_of_what_runs_say_that_workers_are_worth_is_the_measured_one() -> None:
    _, *lines = next(table for table in tables("averaging.md") if table[0][:2] == ["task", "steps"])
    measured = rows("averaging_worth")
    for (task, steps, killed, workers, says, worth), row in zip(lines, measured, strict=True):
        assert same_task(task, str(row["task"])), task
        assert [steps, killed, workers] == [row["steps"], row["killed"], str(row["W"])]
        assert same(says, float(str(row["said"]))) and worth == row["worth"]


def test_the_table_of_tails_is_the_measured_one() -> None:
    _, *lines = next(table for table in tables("notes/averaging.md") if "averaging_tails.md" in table[0][0])
    for task, workers, *said in lines:
        measured = [
            cell("averaging_tails", column, task=task, W=int(workers), killed=killed)
            for killed in ("no", "yes")
            for column in ("alone", "tail")
        ]
        assert all(map(same, said, measured)), (task, said, measured)


GRAPHS = {
    "Facebook's friends": "facebook",
    "Enron's mail": "enron",
    "Slashdot's links": "slashdot",
    "a grid of 300 × 300, row by row": "grid",
    "the same, numbered at random": "grid, shuffled",
}


def test_the_table_of_ghosts_is_the_measured_one() -> None:
    _, *lines = next(table for table in tables("placement.md") if table[0][-1] == "at random")
    assert {line[0] for line in lines} == {*GRAPHS} and {row["graph"] for row in rows("graph_placed")} == {
        *GRAPHS.values()
    }
    for said, multilevel, parsa, in_order, at_random in lines:
        for cell_of, method, column in (
            (multilevel, "multilevel", "ghosts a part"),
            (parsa, "parsa", "ghosts a part"),
            (in_order, "parsa", "in order"),
            (at_random, "parsa", "at random"),
        ):
            measured = cell("graph_placed", column, graph=GRAPHS[said], method=method)
            assert int(cell_of.replace(",", "")) == measured, (said, method, column)
    where = {"graph": "enron", "method": "multilevel"}
    placed, in_order_mb = (cell("graph_placed", c, **where) for c in ("MB a pass, placed", "in order: MB"))
    assert round(100 * (1 - placed / in_order_mb)) == 5  # said below the table


def test_the_table_of_lines_is_the_counted_one() -> None:
    head, *lines = next(table for table in tables("graphs.md") if table[0][1] == "gridml")
    assert [line[0] for line in lines] == [row["program"] for row in rows("graph_lines")]
    for (_, *said), row in zip(lines, rows("graph_lines"), strict=True):
        assert [None if each == "–" else int(each) for each in said] == [row[name] for name in head[1:]]
    for row in rows("graph_lines"):  # those of the programs as they are now
        assert counted(EXAMPLES / f"{row['program']}.py") == row["gridml"]
        for column in ("networkx", "ready", "GraphFrames"):
            assert counted(PEERS / f"{row['program']}_{column.lower()}.py") == row[column]
    shares = [float(str(row["gridml"])) / float(str(row["networkx"])) for row in rows("graph_lines")]
    assert (f"{min(shares):.1f}", f"{max(shares):.1f}") == ("1.3", "1.6")


def same_task(said: str, measured: str) -> bool:
    """Return True if a task as written, `CIFAR-10 (10,000), GroupNorm`, is the measured `CIFAR-10, GroupNorm`."""
    said = re.sub(r" \([\d,]+\)", "", said)
    return said == measured or said.removesuffix(", AdamW") == measured


def tables(file: str) -> list[list[list[str]]]:
    """Return the tables of a page, each as lines of cells; the first line is the head."""
    blocks: list[list[list[str]]] = [[]]
    for line in (ROOT / "docs" / file).read_text(encoding="utf-8").splitlines():
        if line[:1] != "|":
            blocks.append([])
        elif line.strip("|-: "):
            blocks[-1].append([cell.strip(" *") for cell in line.strip("|").split("|")])
    return [table for table in blocks if table]


def placements(name: str) -> dict[str, dict[str, Row]]:
    """Return the rows of a table of measured placements, by graph and method."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows(name):
        if row.get("M") is not None:
            found.setdefault(str(row["graph"]), {})[str(row["method"])] = row
    return found


@pytest.mark.parametrize(("head", "name"), [("graph", "placement"), ("graph, 64 parts", "placement_on_64")])
def test_the_tables_of_placements_are_the_measured_ones(head: str, name: str) -> None:
    measured = placements(name)
    first, *lines = next(
        table for table in tables("notes/placement.md") if table[0][0] == head and table[0][-1] in ALL_PEERS
    )
    methods = [cell.replace("`", "") for cell in first[1:]]
    assert {line[0] for line in lines} == set(measured)
    for graph, *cells in lines:
        for said, method in zip(cells, methods, strict=True):
            row = measured[graph].get(method)
            assert (said == "–") == (row is None), (graph, method)
            if row is not None:
                seconds, _, improvements = said.partition(" s: ")
                assert float(seconds) == float(f"{row['CPU s']:.2g}"), (graph, method)
                for number, figure in zip(improvements.split(", "), "MTS", strict=True):
                    assert same(number, float(str(row[figure]))), (graph, method, figure)


def test_the_table_of_other_objectives_is_the_measured_one() -> None:
    measured = placements("placement")
    columns = [("multilevel, traffic, 3%", "T"), (None, "T"), ("multilevel, total", "S")]
    columns += [("multilevel, total, 3%", "S"), (None, "S")]
    _, *lines = next(table for table in tables("notes/placement.md") if table[0][-1] == "CPU s")
    assert {line[0] for line in lines} == {graph for graph, of in measured.items() if "multilevel, total" in of}
    for graph, *cells, seconds in lines:
        of = measured[graph]
        for said, (method, figure) in zip(cells, columns, strict=True):
            number, _, peer = said.partition(" (")
            assert same(number, float(str(of[method or peer[:-1]][figure]))), (graph, method, figure)
            if method is None:
                assert all(
                    float(str(of[each][figure])) <= float(str(of[peer[:-1]][figure]))
                    for each in set(ALL_PEERS) & set(of)
                )
        for said, method in zip(seconds.split(", "), ("multilevel, traffic, 3%", "multilevel, total"), strict=True):
            assert float(said) == float(f"{of[method]['CPU s']:.2g}"), (graph, method)
