"""Put a page together: one HTML file with its style, its scripts and what it shows inside, which asks for nothing."""

from __future__ import annotations

import base64
import errno
import hashlib
import html
import re
from importlib.resources import files
from pathlib import Path

from gridml.errors import UsageError
from gridml.protocol.bundle import write_atomic
from master.views.json_text import json_text
from master.views.page.facts import PageFacts, read_page_facts
from master.views.page.library import read_library

STYLES = ("page.css",)
SCRIPTS = ("numbers.js", "ticks.js", "described.js", "charts.js", "summary.js", "events.js", "page.js")  # as one text


def write_page(root: Path, file: Path) -> None:
    """Write the page of the run in `root` into one file, whole or not at all.

    Raises LedgerError when there is no such run, UsageError when the file cannot be written.
    """
    text = render_page(read_page_facts(root))
    try:
        write_atomic(file, text.encode())
    except OSError as error:
        advice = "Name a file in a folder that is there, as in --html run.html."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "Make room on its disk, or name a file on another, as in --html /elsewhere/run.html."
        raise UsageError(f"{file} cannot be written: {error.strerror}. {advice}") from error


def render_page(facts: PageFacts, *, live: bool = False) -> str:
    """Return the page as HTML. One that is `live` asks the address `data` beside its own for what is new; one that is
    not can ask for nothing, which its policy makes sure of."""
    library = read_library()
    style = "\n".join((library.style, *map(_own, STYLES)))
    script = "\n".join((library.script, *map(_own, SCRIPTS)))
    parts = {
        "policy": policy(style, script, live=live),
        "title": html.escape(f"{facts.report.program}: {facts.report.status}"),
        "style": style,
        "live": "yes" if live else "no",
        # A "<" could end the element that it stands in; as an escape it is the same text to whoever reads JSON.
        "data": json_text(facts.to_json()).replace("<", "\\u003c"),
        "script": script,
    }
    # In one pass: what is put in may look like a place of its own.
    return re.sub(r"{{(\w+)}}", lambda place: parts[place[1]], _own("page.html"))


def policy(style: str, script: str, *, live: bool) -> str:
    """Return the content security policy of a page: only this style and this script, and no request unless `live`."""
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src {connect}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _own(name: str) -> str:
    return files("master.views.page").joinpath(name).read_text("utf-8")
