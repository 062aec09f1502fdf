"""The page is one file that makes no requests, and shows the ledger's content as text."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridml.cli.main import command_line
from gridml.errors import LedgerError, UsageError
from master.views.page import document
from master.views.page.document import read_page_facts, render_page, write_page


class Parts(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.texts:
            self.texts[self._inside].append(data)

    @property
    def policy(self) -> str:
        return next(a["content"] or "" for _, a in self.elements if a.get("http-equiv") == "Content-Security-Policy")


@pytest.fixture
def page(finished: Path) -> str:
    return render_page(read_page_facts(finished))


def test_it_holds_the_report_that_the_command_prints(finished: Path, page: str) -> None:
    shown = json.loads(Parts(page).texts["script"][0])
    printed = json.loads(CliRunner().invoke(command_line(), ["report", str(finished), "--json"]).stdout)
    assert shown["report"] == printed
    status = json.loads(CliRunner().invoke(command_line(), ["status", str(finished), "--json"]).stdout)
    assert {name: status[name] for name in shown["progress"]} == shown["progress"]


def test_what_is_in_a_ledger_ends_no_element_and_fills_no_place(finished: Path, page: str) -> None:
    data, script = Parts(page).texts["script"]
    event = next(text for text in json.loads(data)["events"]["text"] if "onerror" in text)
    assert "{{data}}" in event
    assert "uPlot" in script
    assert "img" not in [tag for tag, _ in Parts(page).elements]


def test_nothing_in_it_names_an_address_to_load_from(page: str) -> None:
    for tag, attributes in Parts(page).elements:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    style = Parts(page).texts["style"][0]
    assert "url(" not in style and "@import" not in style


@pytest.mark.parametrize(("live", "connect"), [(False, "connect-src 'none'"), (True, "connect-src 'self'")])
def test_its_policy_lets_through_its_own_style_and_script_alone(finished: Path, live: bool, connect: str) -> None:
    parts = Parts(render_page(read_page_facts(finished), live=live))
    assert parts.policy.startswith("default-src 'none';")
    assert connect in parts.policy
    assert "unsafe" not in parts.policy
    for text in (parts.texts["style"][0], parts.texts["script"][1]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in parts.policy


def test_each_element_that_a_script_looks_for_is_there(page: str) -> None:
    there = {attributes["id"] for _, attributes in Parts(page).elements if "id" in attributes}
    script = Parts(page).texts["script"][1]
    sought = set(re.findall(r"(?:byId|getElementById)\(\"([\w-]+)\"\)", script))
    assert sought and sought <= there


def test_the_command_writes_it(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    ended = CliRunner().invoke(command_line(), ["report", str(finished), "--html", str(file)])
    assert ended.exit_code == 0, ended.output
    assert file.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_full_disk_is_said_and_leaves_no_part_of_a_page(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UsageError, match=r"cannot be written: No space left on device\. Free space on its disk, or"):
        write_page(finished, tmp_path / "run.html")
    assert not [*tmp_path.glob("*run.html*")] and not [*tmp_path.glob(".*")]


def test_a_file_in_a_folder_that_is_not_there_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"cannot be written: No such file or directory\. Give a file in an existing folder"
    ):
        write_page(finished, tmp_path / "none" / "run.html")
    with pytest.raises(LedgerError, match="is not a run"):
        write_page(tmp_path, tmp_path / "run.html")


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "PACKAGE", "youplot_that_nobody_has")
    with pytest.raises(UsageError, match=r"is not installed. Install it with: pip install youplot==1"):
        document.read_library()


def test_another_library_than_the_one_it_was_made_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(document.SHA256, document.SCRIPT, "0" * 64)
    with pytest.raises(UsageError, match="has the SHA-256 2d27e8"):
        document.read_library()
