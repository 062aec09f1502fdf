"""Every block of commands of every page runs as a reader runs it: page by page, block by block, in a clean copy of the
tree, in the environment that README's own commands make, with nothing else installed.

The text of a block after an empty line must be part of the commands' output. A block with special requirements is
marked in the line above. A program that a page shows under a name is saved under that name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from pools.release import NoCondor, find
from tests.docs.test_code_blocks import BLOCKS, PAGES, ROOT, Block

pytestmark = [pytest.mark.alone, pytest.mark.real, pytest.mark.timeout(900)]
SHELL = ("", "sh", "bash")
LEAVES_OUT = ("needs", "fragment")  # marks of blocks that are not run
SAVED = ("program", "file")  # marks of blocks that are saved under the name that follows
WALKED = [page for page in PAGES if page != ROOT / "README.md"]


def is_run(block: Block) -> bool:
    return block.language in SHELL and block.mark not in LEAVES_OUT


def of(page: Path) -> list[Block]:
    name = page.relative_to(ROOT).as_posix()
    return [block for block in BLOCKS if block.page == name and (is_run(block) or block.mark in SAVED)]


def commands_and_answer(block: Block) -> tuple[str, str]:
    """Return the commands of a block, and their expected output: all text after the first empty line."""
    typed, _, answer = block.code.partition("\n\n")
    return typed, answer


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, with the environment that README's commands create there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this tree is no git checkout, so which files belong to it is not known")
    to = tmp_path_factory.mktemp("reader") / "gridml"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    walk(to, of(ROOT / "README.md"))
    return to


def walk(tree: Path, blocks: Sequence[Block]) -> None:
    """Run the blocks of a page in order, each in a shell of its own in `tree`; programs are saved there on the way."""
    for block in blocks:
        if block.mark in SAVED:
            if block.note:
                (tree / block.note).write_text(block.code, "utf-8")
            continue
        typed, answer = commands_and_answer(block)
        printed = run(tree, typed)
        if answer:
            assert answer in printed, f"{block.page}:{block.line}\n{printed}"


def run(tree: Path, typed: str) -> str:
    """Run lines in the shell of a reader who has followed README, and return what they print. Of this process's
    environment it gets the user and where packages and data come from; once there is a .venv, it is active."""
    bare = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR", "GRIDML_DATA", "GRIDML_CACHE", "PIP_ARGS",
            "PIP_CONFIG_FILE", "PIP_INDEX_URL", "USER", "LOGNAME") if name in os.environ}  # fmt: skip
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "activate").exists())
    activate = "[ ! -e .venv/bin/activate ] || . .venv/bin/activate\n"
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", activate + typed],
        cwd=tree,
        env={**bare, "PATH": path, "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, f"{typed}\nended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    return "\n".join(line.rstrip() for line in ended.stdout.splitlines()) + "\n"


@pytest.mark.parametrize("page", [page for page in WALKED if any(map(is_run, of(page)))], ids=lambda page: page.stem)
def test_a_page_runs_from_its_first_line_to_its_last(page: Path, copy: Path) -> None:
    if page == ROOT / "docs" / "htcondor.md":
        try:
            find()
        except NoCondor as error:
            pytest.skip(f"no HTCondor can be had here: {error}")
    walk(copy, of(page))


def test_a_command_that_fails_and_another_answer_are_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ended with 1"):
        run(tmp_path, "true\nfalse\ntrue")
    block = Block("page.md", 1, "", "", "", "echo one\n\ntwo\n")
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        walk(tmp_path, [block])


def test_what_a_block_needs_is_said_in_words() -> None:
    assert all(block.note for block in BLOCKS if block.mark == "needs")
    assert {block.mark for block in BLOCKS if block.language in SHELL} <= {"", *LEAVES_OUT}


def test_commands_that_make_nothing_are_few() -> None:
    """Every page has commands that run: one whose commands all have requirements would test nothing."""
    run_here = [block for block in BLOCKS if is_run(block) and re.search(r"^gridml ", block.code, re.M)]
    assert len(run_here) >= 8
