"""Every public name and every command is in the reference, with a docstring, and no link is broken."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import gridml
from docs.site import reference
from docs.site.files import files_page
from docs.site.links import anchors, broken_in_site, broken_in_text
from docs.site.tree import ROOT

TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_public_name_has_a_place() -> None:
    assert reference.names_without_subject() == set()
    page = reference.names_page()
    for name in reference.public_names():
        assert f"### gridml.{name}\n" in page


@pytest.mark.parametrize("name", sorted(reference.CALLS))
def test_a_call_has_its_options(name: str) -> None:
    page = reference.names_page().partition(f"### gridml.{name}\n")[2].partition("\n### ")[0]
    signature = inspect.signature(getattr(gridml, name)).parameters
    named = re.findall(r"^\| `(\w+)` \|", page, re.M)
    assert {*named} == signature.keys() - {"program", "run", "on_event", "display"} | {*named} & {"program"}
    assert "silence" in named and "as_json" not in named


def test_a_name_without_a_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gridml, "__all__", [*gridml.__all__, "something_new"])
    with pytest.raises(ValueError, match="something_new"):
        reference.names_page()


@pytest.mark.parametrize("name", sorted(reference.public_names()))
def test_every_public_name_says_what_it_is(name: str) -> None:
    said = inspect.getdoc(getattr(gridml, name))
    assert said and said.strip()


def test_every_command_is_there_with_its_options() -> None:
    page = reference.commands_page()
    named = [path for path, _ in reference.commands()]
    assert "gridml run" in named and "gridml ami build" in named
    for path, command in reference.commands():
        assert f"## {path}\n" in page
        assert command.help, path
    assert "`--html FILE`" in page


def test_every_file_is_listed_with_its_purpose(tmp_path: Path) -> None:
    page = files_page(ROOT)
    assert "## master/store/\n" in page and "| `ledger.py` | The ledger" in page
    (tmp_path / "gridml").mkdir()
    (tmp_path / "gridml" / "mute.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"mute\.py has no docstring"):
        files_page(tmp_path)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_no_link_leads_nowhere(text: Path) -> None:
    assert list(broken_in_text(text)) == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "docs" / "site" / "mkdocs.yml").read_text("utf-8")
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    named = set(re.findall(r": (docs/\S+\.md)$", navigation, re.M))
    assert named == pages | {f"docs/reference/{made}.md" for made in ("names", "commands", "files")}


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One Thing, `here`\n[a](page.md#one-thing-here) [b](page.md#two) [c](none.md) [d](https://example.org)\n"
    )
    assert anchors(page) == {"one-thing-here"}
    assert list(broken_in_text(page)) == ["page.md: page.md#two", "page.md: none.md"]
    (tmp_path / "a.html").write_text('<h1 id="x"></h1><a href="#x"></a><a href="b.html"></a><a href="a.html#y"></a>')
    (tmp_path / "c.html").write_text('<script src="https://example.org/x.js"></script>')
    assert list(broken_in_site(tmp_path)) == [
        "a.html: b.html",
        "a.html: a.html#y",
        "c.html loads https://example.org/x.js",
    ]
