"""Checks for broken links in the Markdown files of the project and in the pages of a built site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs.site.tree import LINK

_FENCE = re.compile(r"^```.*?^```", re.M | re.S)  # brackets and # in code blocks are neither links nor headings
_HEADING = re.compile(r"^#+ (.*)$", re.M)


def broken_in_text(text: Path) -> Iterator[str]:
    """Yield the links of a Markdown file to missing files or missing headings."""
    for address, anchor in LINK.findall(_FENCE.sub("", text.read_text("utf-8"))):
        if "://" in address or address.startswith("mailto:"):
            continue
        target = text.parent / unquote(address)
        if not target.exists():
            yield f"{text.name}: {address}"
        elif anchor and anchor[1:] not in anchors(target):
            yield f"{text.name}: {address}{anchor}"


def anchors(text: Path) -> set[str]:
    """Return the anchors of the headings in a Markdown file."""
    # Like Python-Markdown, which renders the site: lower case, no punctuation, hyphens for spaces.
    headings = _HEADING.findall(_FENCE.sub("", text.read_text("utf-8")))
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


def broken_in_site(site: Path) -> Iterator[str]:
    """Yield the links of built pages to missing files or anchors, and every resource loaded from another site."""
    pages = {path.resolve(): _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for name, value in page.links:
            parts = urlsplit(value)
            if parts.scheme or parts.netloc:
                if name == "src":
                    yield f"{path.relative_to(site.resolve())} loads {value}"
                continue
            if path.name == "404.html":  # served for any address, so its links are relative to the root
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            there = target.exists()
            if there and parts.fragment and target in pages:
                there = unquote(parts.fragment) in pages[target].places
            if not there:
                yield f"{path.relative_to(site.resolve())}: {value}"


class _Page(HTMLParser):
    """Parser that collects a page's links, as (attribute, address), and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.places: set[str] = {"", "__search"}  # the second is created by a script
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.append((name, value))
            if name in ("id", "name") and value:
                self.places.add(value)
