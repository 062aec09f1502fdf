"""Every block of code in README.md and docs/ is run, checked as a program, or parsed in its language.

A Markdown comment in the line above selects the test of a block of Python: `<!-- runs -->`, it is run;
`<!-- program -->`, it is saved as a file and `gridml check` tries it; `<!-- script -->`, a test of its own runs it;
`<!-- file NAME -->`, it is saved beside the programs of its page. Other Python is parsed. Commands go
through the command line's own parser, and `test_commands.py` runs those that need nothing else: what a block needs is
in the line above, `<!-- needs ... -->` or `<!-- fragment -->`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from gridml.cli.main import command_line

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"(?:^<!-- (\w+)([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
LEAVE_OUT = ("...", "…")  # for what a reader fills in
COMMANDS = typer.main.get_command(command_line())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MAKE = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))


@dataclass(frozen=True)
class Block:
    """Code from a page."""

    page: str
    line: int  # first line
    mark: str  # selects the test
    note: str  # text after the mark, such as the file that a program is saved as
    language: str  # "": none is named
    code: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    return [
        Block(name, text.count("\n", 0, place.start()) + 1, mark or "", (note or "").strip(), language, code)
        for place in FENCE.finditer(text)
        for mark, note, language, code in [place.groups()]
    ]


def lines_of(block: Block) -> list[str]:
    """Return the commands of a block, with joined continuation lines, without comments and output."""
    joined = block.code.replace("\\\n", " ").splitlines()
    return [line for line in joined if re.match(r"(\.venv/bin/)?(gridml|make|pip|python) ", line)]


def save_files(page: str, folder: Path) -> None:
    """Save the files that the programs of a page import."""
    for block in BLOCKS:
        if block.mark == "file" and block.page == page:
            (folder / block.note).write_text(block.code)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def ids(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.mark == "runs"], ids=ids)
def test_it_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_files(block.page, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a network is slower on more, and far slower on a busy machine
    try:
        exec(compile(block.code, f"{block.page}:{block.line}", "exec"), {"__name__": "page"})
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.mark == "program"], ids=ids)
def test_it_is_a_program(block: Block, tmp_path: Path) -> None:
    save_files(block.page, tmp_path)
    file = tmp_path / "page_program.py"
    file.write_text(block.code)
    ended = CliRunner().invoke(command_line(), ["check", str(file)])
    assert ended.exit_code == 0, (ended.output, ended.exception)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=ids)
def test_it_is_python(block: Block) -> None:
    ast.parse(block.code)
    assert block.mark in ("", "runs", "program", "script", "file")


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in ("json", "toml")], ids=ids)
def test_it_is_data(block: Block) -> None:
    {"json": json.loads, "toml": tomllib.loads}[block.language](block.code)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in ("", "sh") and lines_of(b)], ids=ids)
def test_its_commands_exist(block: Block) -> None:
    for line in lines_of(block):
        check_command(line)


def check_command(line: str) -> None:
    """Parse a command. Raises the errors of the command line's own parser, AssertionError for missing files."""
    program, *arguments = shlex.split(line, comments=True)
    arguments = [a for a in arguments if a not in LEAVE_OUT]
    if program.endswith("gridml"):
        parse(COMMANDS, arguments)
    elif program == "make":
        assert {a for a in arguments if "=" not in a} <= MAKE, line
    elif program.endswith("python"):
        assert arguments[0] == "-m" and importlib.util.find_spec(arguments[1]), line
    else:
        named = re.findall(r"\"\.\[([\w,]+)\]\"", line)  # by the name gridml no index of packages has it
        assert named and {extra for names in named for extra in names.split(",")} <= {*PROJECT["optional-dependencies"]}


def parse(command: typer.core.TyperGroup, arguments: list[str]) -> None:
    """Read the arguments of a command without calling it."""
    context = command.make_context("gridml", arguments, resilient_parsing=False)
    while hasattr(command, "commands"):
        _, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(command.name, arguments, parent=context)


@pytest.mark.parametrize(
    "line",
    ["gridml run", "gridml rum x.py", "gridml run x.py --wrokers 3", "gridml run x.py --workers many", "make tets",
     'pip install ".[plto]"', "pip install 'gridml[plot]'", "python -m gridml_that_nobody_has"],
)  # fmt: skip
def test_a_command_that_is_not_there_is_seen(line: str) -> None:
    with pytest.raises(Exception, match=r".") as seen:
        check_command(line)
    assert isinstance(seen.value, AssertionError) or hasattr(seen.value, "format_message")


def test_blocks_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n<!-- runs -->\n```python\nassert False\n```\n\n```\ngridml run x.py \\\n  --seed 1\n3 answers\n```\n"
    )
    run, shell = blocks_of(page)
    assert (run.mark, run.language, run.code) == ("runs", "python", "assert False\n")
    assert (shell.mark, lines_of(shell)) == ("", ["gridml run x.py    --seed 1"])
    with pytest.raises(AssertionError):
        test_it_runs(run, tmp_path, monkeypatch)
