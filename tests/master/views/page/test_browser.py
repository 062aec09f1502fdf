"""A page in a real browser: with ten thousand events, on a phone, by keyboard, and its requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.browser import browsing, installed
from master.store.ledger import Ledger
from master.views.page.document import write_page
from master.views.page.page_server import PageServer, serving
from tests.master.views.page.conftest import COUNT

EVENTS = 10_000
NUMBERS = """[
  [1.1575906499999999e21, 3.09e-17, 1157590, 0.5].map(count).join(" "),
  numberTicks([1e21, 1.5e21, 2e21], 5e20).join(" "),
  numberTicks([3e-17, 3.05e-17], 5e-19).join(" "),
  numberTicks([0, 5e5, 9.99999e5], 5e5).join(" "),
].join("|")"""
ENDS = "[...charts.values()].filter((one) => one.chart.timed).map((one) => one.plot.scales.x.max).join()"
SHOWN = "[...document.querySelectorAll('.row')].length"


@pytest.mark.real
@pytest.mark.skipif(installed() is None, reason="no Chromium is installed")
def test_a_page_in_a_browser(finished: Path, hostile: Path, tmp_path: Path) -> None:
    ledger = Ledger(finished / "ledger.db", shared_disk=False)
    with ledger.transaction():
        for number in range(EVENTS - 2):
            ledger.event(103.0 + number / EVENTS, "running", f"w{number} on slot-{number % 7}")
    ledger.close()
    file = tmp_path / "run.html"
    write_page(finished, file)
    browser = installed()
    assert browser is not None
    with browsing(browser, tmp_path / "profile") as tab, serving(PageServer(finished)) as server:
        tab.go(file.as_uri())
        assert tab.value("document.getElementById('event-count').textContent") == "10,000 of 10,000 events"
        assert tab.value("document.querySelectorAll('canvas').length") == 7
        assert 0 < tab.value(SHOWN) < 60  # only the visible ones
        assert tab.value("document.title") == "digits.py: finished"  # no script in an event was run

        # By keyboard: the list goes to its last event, a chart's legend reads its values.
        tab.value("document.getElementById('events').focus()")
        tab.press("End")
        assert "running: w9997 on slot-1" in tab.value("document.getElementById('event').textContent")
        credited = "document.querySelectorAll('.plot')[0].querySelectorAll('.u-value')[1].textContent"
        assert tab.value(credited) == "2,000"  # its last value, without a pointer
        tab.value("document.querySelectorAll('.plot')[0].focus()")
        tab.press("ArrowLeft")
        assert tab.value(credited) == "2,000"  # at second 8, where the run ended at 10
        tab.press("ArrowLeft")
        assert tab.value(credited) == "1,750"
        others = "document.querySelectorAll('.plot')[1].querySelector('.u-value').textContent"
        assert tab.value(others) == "9.00 s"  # of the workers, at the moment nearest to second 7
        assert tab.value(ENDS) == "10,10,10,10,10"  # all end with the run
        assert tab.value(NUMBERS) == "1.16e21 3.09e-17 1,157,590 0.5|1e21 1.5e21 2e21|3e-17 3.05e-17|0 500k 1,000k"

        # On a phone nothing is wider than the screen.
        tab.go(file.as_uri(), width=320, height=640)
        assert tab.value("document.documentElement.scrollWidth") <= 320
        assert set(tab.requests) == {file.as_uri()} | {each for each in tab.requests if each.startswith("data:")}

        # All names and texts of a run are shown as text.
        file = tmp_path / "hostile.html"
        write_page(hostile, file)
        tab.go(file.as_uri())
        assert tab.errors == []
        tab.value("for (const one of document.querySelectorAll('details')) one.open = true")
        tab.value("chooseEvent(0)")
        assert tab.value("document.querySelectorAll('img, body script[src], b, i').length") == 0
        assert tab.value("document.title") == "<img src=x onerror=document.title=1>.py: failed"
        shown = tab.value("document.body.innerText")
        for words in ("run ", "loss", "list", "words", "w1", "f failed: ", "Image", "ValueError: ", "failed", "sized "):
            assert f"{words}<img src=x" in shown, words
        assert "is in quarantine: <img src=x" in shown
        assert ": 1 shortened; the last one: <img src=x" in shown and "Altered pushes of w1<img src=x" in shown

        # Live: new data arrives, from this machine only.
        tab.go(server.address)
        tab.requests.clear()
        ledger = Ledger(finished / "ledger.db", shared_disk=False)
        with ledger.transaction():
            ledger.event(109.0, "warning", "something new")
            ledger.open_epoch(2, COUNT, 109.0)
            ledger.set_metrics(2, {"accuracy": 0.99, "loss": 0.4})
        ledger.close()
        server.facts._again_s = 0.0
        tab.value("look()")
        assert tab.value("document.getElementById('event-count').textContent") == "10,001 of 10,001 events"
        assert tab.value("charts.get('metric loss').plot.series.map((line) => line.label).join()") == (
            "epochs,evaluated,logged by f"  # until then only f had reported it
        )
        assert tab.requests and all(each.startswith(server.address + "data?after=") for each in tab.requests)
        assert tab.errors == []
