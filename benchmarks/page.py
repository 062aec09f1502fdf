"""Measure the time to first display of the page of a run with more than ten thousand events, in a headless Chromium.
Goal: 1 s.

The run is simulated (a hundred machines with lives of a minute); its ledger is like that of a real run. The page is
opened as a file (`gridml report --html`) and live (`gridml watch --page`), in turn, each time in a new browser with a
fresh profile.

    python -m benchmarks.page [REPEATS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.arguments import numbers, sized
from benchmarks.browser import browsing, installed
from benchmarks.table import Cell, write
from master.views.page.document import write_page
from master.views.page.page_server import PageServer, serving

MACHINES = (
    "--cost", "t_x=0.5,t_s=1,boot=5,push=0.2", "--vertices", sized("150000", "1500"), "--epochs", "2", "--no-push",
    "--workers", "100", "--steps-each", "0", "--lifetime", "exponential(1m)",
)  # fmt: skip
PAINTED_MS = """new Promise((done) => new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (entry.name === "first-contentful-paint") done(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""
COUNTED = "document.getElementById('event-count').textContent"
GOAL_MS = 1_000.0


def main() -> None:
    (repeats,) = numbers(__doc__, repeats=sized(7, 1))
    program = installed()
    if program is None:
        print("skipped: no Chromium is installed.")
        return
    with tempfile.TemporaryDirectory(prefix="gridml-page-") as name:
        run, file = Path(name) / "run", Path(name) / "run.html"
        command = (sys.executable, "-P", "-m", "gridml", "simulate", *MACHINES)
        subprocess.run([*command, "--run-dir", str(run), "--json"], stdout=subprocess.DEVNULL, check=True)
        began = time.perf_counter()
        write_page(run, file)
        written_s = time.perf_counter() - began
        with serving(PageServer(run)) as server:
            ways = {"a file": file.as_uri(), "live": server.address}
            painted: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(repeats):
                for way, address in ways.items():
                    painted_ms, events = first_paint(program, address, Path(name) / f"profile-{number}-{way[:1]}")
                    painted[way].append(painted_ms)
        size_mb = file.stat().st_size / 1e6
    rows: list[dict[str, Cell]] = [
        {
            "page": way,
            "first paint ms": round(statistics.median(each)),
            "least": round(min(each)),
            "most": round(max(each)),
            "MB": round(size_mb, 2) if way == "a file" else None,
            "written s": round(written_s, 2) if way == "a file" else None,
        }
        for way, each in painted.items()
    ]
    write(
        "page",
        f"The page of a run with {events.split()[0]} events",
        rows,
        [
            f"medians of {repeats}, opened in turn, each by a fresh headless Chromium; 1200 by 900 points",
            "first paint: first-contentful-paint, since the request of the address",
            "live: the first paint shows the page with the content of its first answer",
            f"goal: {GOAL_MS:,.0f} ms; load of the machine at the end {os.getloadavg()[0]:.1f}",
        ],
    )


def first_paint(program: str, address: str, profile: Path) -> tuple[float, str]:
    """Return the milliseconds until the first paint of the page, and the number of events that it shows."""
    with browsing(program, profile) as tab:
        tab.go(address)
        return float(tab.value(PAINTED_MS)), str(tab.value(COUNTED))


if __name__ == "__main__":
    main()
