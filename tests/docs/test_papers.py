"""Each row of the tables in docs/papers.md names files, options, public names, tests and results that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import typer

import gridml
from chunk_model.families import Normal
from chunk_model.goodput import Costs, one_chunk_safe_ends
from chunk_model.paper import deterministic_chunk, normal_chunk_as_printed, stochastic_chunk_as_printed
from gridml.cli.main import command_line

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "papers.md"
HEADER = "in the paper"  # the first cell of the tables' first lines
PAPERS = ("Condor and spot instances", "TUX2", "Parsa", "Duan, Wang and Wu")
A_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
AN_OPTION = re.compile(r"(\w+Options)\.(\w+)")
A_PATH = re.compile(r"[\w.-]+/[\w./-]*\.(?:py|md|png|svg|json)|[\w./-]+/")


def commands(command: typer.core.TyperCommand, name: str = "gridml") -> Iterator[tuple[str, set[str]]]:
    """Yield the name and the options of a command, and of each below it."""
    yield name, {option for given in command.params for option in given.opts if option.startswith("--")}
    for below, each in getattr(command, "commands", {}).items():
        yield from commands(each, f"{name} {below}")


OPTIONS = dict(commands(typer.main.get_command(command_line())))  # of each command
ALL_OPTIONS = set().union(*OPTIONS.values())


def tables(text: str) -> dict[str, list[list[str]]]:
    """Return the cells of each row of the tables that begin with `HEADER`, by the page's section (##)."""
    found: dict[str, list[list[str]]] = {}
    section, inside = "", False
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif cells[0] == HEADER:
            inside = True
        elif inside and set(line) - set("|-: "):
            found.setdefault(section, []).append(cells)
    return found


def wrong(row: list[str]) -> Iterator[str]:
    """Yield what is wrong with a row: names that do not exist, and rows that neither show nor say why not."""
    spans = re.findall(r"`([^`]+)`", " ".join(row))
    linked = re.findall(r"\]\((?:\.\./)([^)#]+)", " ".join(row))
    tests = [match.groups() for span in spans if (match := A_TEST.fullmatch(span))]
    paths = [span for span in spans if A_PATH.fullmatch(span)] + linked
    for file, name in tests:
        if not (ROOT / file).is_file():
            yield f"{file} does not exist"
        elif not re.search(rf"^\s*def {name}\(", (ROOT / file).read_text("utf-8"), re.M):
            yield f"{file} has no {name}"
    yield from (f"{path} does not exist" for path in paths if not (ROOT / path).exists())
    for span in spans:
        yield from (f"no command has {each}" for each in re.findall(r"--[a-z][\w-]*", span) if each not in ALL_OPTIONS)
        yield from (f"gridml.{name} is not public" for name in re.findall(r"\bgridml\.(\w+)", span) if not has(name))
        if span.startswith("gridml ") and span.split(" --")[0] not in OPTIONS:
            yield f"there is no command {span}"
    sources = [(ROOT / path).read_text("utf-8") for path in paths if path.endswith(".py") and (ROOT / path).is_file()]
    for name, field in [match.groups() for span in spans if (match := AN_OPTION.fullmatch(span))]:
        declared = rf"^class {name}\b(?:.*\n)*?    {field}: "
        if not any(re.search(declared, source, re.M) for source in sources):
            yield f"no file of the row has {name}.{field}"
    text = " ".join(row).lower()
    if "not here" in text:
        if not re.search(r"not here(?: yet|,? because)", text):
            yield "it is not here, and no reason is given"
    elif not [path for path in paths if "benchmarks/results/" not in path]:
        yield "no file is named"
    elif not tests and not any("benchmarks/results/" in path for path in paths):
        yield "no test or result shows it"


def has(name: str) -> bool:
    return name in gridml.__all__ or hasattr(gridml, name)


ROWS = [(section, row) for section, rows in tables(PAGE.read_text("utf-8")).items() for row in rows]


@pytest.mark.parametrize(("section", "row"), ROWS, ids=[f"{section}: {row[0][:50]}" for section, row in ROWS])
def test_all_that_a_row_names_exists(section: str, row: list[str]) -> None:
    assert list(wrong(row)) == []


def test_each_paper_has_its_rows() -> None:
    assert {section for section, _ in ROWS} == {*PAPERS}
    assert {len(row) for _, row in ROWS} == {4}, [row for _, row in ROWS if len(row) != 4]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("`tests/docs/test_papers.py::test_none`", "has no test_none"),
        ("`tests/docs/no_such.py::test_none`", "no_such.py does not exist"),
        ("`master/no_such.py`", "master/no_such.py does not exist"),
        ("`benchmarks/results/no_such.md`", "no_such.md does not exist"),
        ("[a](../benchmarks/results/no_such.md)", "no_such.md does not exist"),
        ("`--wrokers 3`", "no command has --wrokers"),
        ("`gridml.exchagne`", "gridml.exchagne is not public"),
        ("`gridml rum`", "there is no command gridml rum"),
        ("`ParsaOptions.blocs`, `gridml/placement/parsa.py`", "no file of the row has ParsaOptions.blocs"),
        ("Not here.", "no reason is given"),
        ("`docs/papers.md`", "no test or result shows it"),
        ("`tests/docs/test_papers.py::test_each_paper_has_its_rows`", "no file is named"),
    ],
)
def test_a_row_that_is_wrong_is_seen(cells: str, said: str) -> None:
    assert any(said in each for each in wrong(["a thing", cells]))


def test_a_row_that_is_right_and_rows_of_other_tables() -> None:
    row = [
        "`--chunk paper`",
        "`gridml plan --plot`, `gridml.Vertex`",
        "`docs/papers.md`",
        "`benchmarks/results/kills.md`",
    ]
    assert list(wrong(row)) == []
    assert list(wrong(["a", "Not here, because it costs money"])) == []
    text = f"## One\n| {HEADER} | b |\n|---|---|\n| 1 \\| 2 | 3 |\n\n| other | b |\n|-|-|\n| 4 | 5 |\n"
    assert tables(text) == {"One": [["1 \\| 2", "3"]]}


def test_the_table_of_printed_sizes_is_computed() -> None:
    costs, sizes = Costs(exec_s=0.1, copy_s=0.01, start_s=60.0, end_s=6.0), np.arange(1.0, 40_000.0)
    text, halves = PAGE.read_text("utf-8"), []
    for minutes in (5, 10, 15):
        life = Normal(45 * 60.0, minutes * 60.0)
        kept = one_chunk_safe_ends(life, costs, sizes)
        filled, longest = deterministic_chunk(life.mean_s, costs), stochastic_chunk_as_printed(life, costs, sizes)
        rarely, best = normal_chunk_as_printed(life.mean_s, life.sd_s, costs, sizes), int(kept.argmax()) + 1
        assert longest == sizes[-1]
        of = {size: f"{size:,}: {kept[size - 1]:.1%}" for size in (filled, rarely, best)}
        largest = f"the largest: {kept[longest - 1]:.1%}"
        assert f"| {minutes} min | {of[filled]} | {largest} | {of[rarely]} | {of[best]} |" in text
        halves.append(f"{100 * kept[filled // 2 - 1]:.1f}")
    assert f"Half of it keeps {halves[0]}, {halves[1]} and {halves[2]}%." in text


def test_the_figures_of_the_experiment_are_those_of_its_table() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "paper_experiment.json").read_text("utf-8"))["rows"]
    hours = {row["way"]: row["hours"] for row in rows}
    text = PAGE.read_text("utf-8").replace("\n", " ")
    assert f"An epoch takes {hours['gridml']} h by default, and {hours['gridml, no pushes']} h with `--no-push`" in text
    assert f"of AlexNet {hours['gridml, AlexNet']} and {hours['gridml, no pushes, AlexNet']} h." in text
    assert {"20.9", "4.3"} <= {str(row["GFLOP"]) for row in rows}
