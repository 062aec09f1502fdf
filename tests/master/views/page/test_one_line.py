"""Text of a worker stays on one line in every view, and nothing in it controls a terminal; in JSON it stays exact."""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gridml.api.displays import Notebook
from gridml.cli.main import command_line
from gridml.protocol.foreign import one_line, printable
from gridml.protocol.messages import Failure
from master.state.failures import Alteration, MachineRecord
from master.state.lease_records import LeaseState
from master.store.journal import Events
from master.store.ledger import Ledger
from master.store.reader import connect
from master.views.console import PlainConsole
from master.views.live import Lines, Screen
from master.views.page import document
from master.views.progress import RunProgress, read_progress

FAKE = "Boom\n15:00:00  finished  all is credited\x1b[2J\x9b1m \u202eedih\u2066\r15:00:00\x85\u2028\u200b\ttabbed"


@pytest.fixture
def hostile(finished: Path) -> Path:
    """A run in which a worker's text is wherever one can come to."""
    with contextlib.closing(Ledger(finished / "ledger.db", shared_disk=False)) as ledger, ledger.transaction():
        ledger.event(105.0, "failure", f"chunk [0, 64) of epoch 1, w1: {printable(FAKE)}; another worker will try")
        ledger.quarantine("w2", FAKE, 105.0)
        ledger.machine_failed(MachineRecord(FAKE, 0, 4, 115.0, FAKE))
        ledger.add_altered("w1", Alteration.REFUSED, 7, FAKE, 105.0)
        ledger.worker_failed("w1", 3, 1e6, FAKE)
        lease = LeaseState(1, 1, 0, 0, 64, 0, "w1")
        ledger.add_failure(lease, FAKE, Failure(1, 1, FAKE, "", -1, -1), FAKE, 105.0)
    return finished


def progress(root: Path) -> RunProgress:
    with contextlib.closing(connect(root)) as db:
        return read_progress(db, 110.0)


def command(*arguments: str) -> Callable[[Path], str]:
    return lambda root: CliRunner().invoke(command_line(), [arguments[0], str(root), *arguments[1:]]).output


def lines(root: Path) -> str:
    out = io.StringIO()
    view = Lines(out)
    view.event(0.0, "failure", f"w1: {FAKE}")
    view.progress(0.0, progress(root))
    return out.getvalue()


def panel(root: Path) -> str:
    console = PlainConsole(width=200)
    with console.capture() as shown, Screen(console, FAKE) as screen:
        screen.event(0.0, "failure", f"w1: {FAKE}")
        screen.progress(0.0, progress(root))
    return shown.get()


def events_log(root: Path) -> str:
    with contextlib.closing(Ledger(root / "ledger.db", shared_disk=False)) as ledger:
        events = Events(ledger, root / "events.log", lambda *_: None, lambda: 110.0)
        events.record("failure", {}, f"w1: {FAKE}")
        events.close()
    return (root / "events.log").read_text()


def notebook(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shown = list[str]()
    fake = SimpleNamespace(HTML=str, display=lambda text, display_id: shown.append(text))
    monkeypatch.setattr("gridml.api.displays.import_module", lambda name: fake)
    Notebook(FAKE).event(0.0, "failure", f"w1: {FAKE}")
    return html.unescape(shown[0])


VIEWS: dict[str, Callable[[Path], str]] = {
    "status": command("status"),
    "watch": command("watch"),
    "report": command("report"),
    "lines": lines,
    "panel": panel,
    "events.log": events_log,
}


@pytest.mark.parametrize("view", [*VIEWS, "notebook"])
def test_no_line_of_a_view_begins_in_a_worker_s_text(view: str, hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a failure's message made lines that looked like the master's own."""
    shown = notebook(hostile, monkeypatch) if view == "notebook" else VIEWS[view](hostile)
    assert "Boom\\n15:00:00" in shown
    assert not re.search(r"^\W*15:00:00", shown, re.MULTILINE)
    assert {c for c in shown if not c.isprintable()} <= {"\n"}


def test_the_page_shows_no_line_breaks_of_a_worker_s_text_and_json_has_it_whole(hostile: Path) -> None:
    style = (Path(document.__file__).parent / "page.css").read_text()
    assert re.findall(r"([^}]*)\{[^}]*white-space: pre", style) == ["\n#because, #sizing "]
    answer = json.loads(command("report", "--json")(hostile))
    assert answer["failures"][0]["message"] == FAKE and answer["quarantined"][0]["because"] == FAKE


def test_one_line_is_one_however_often() -> None:
    assert one_line("a\nb\tc\x1b\u202e") == "a\\nb\\tc\\x1b\\u202e" == one_line(one_line("a\nb\tc\x1b\u202e"))
