"""Generator of the README's pictures: a real run, recorded from a terminal and plotted from its ledger.

    python -m docs.pictures [--run-dir DIR]

Trains MNIST on four workers that are killed, like `make demo`, and writes demo.svg (the terminal, as an animation) and
run.svg (workers, kills, pushes and the ledger over time) next to this file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from docs.pictures.ledger_drawing import draw_run
from docs.pictures.terminal_recording import Terminal, animated, record

FOLDER = Path(__file__).resolve().parent
EXAMPLE = FOLDER.parents[1] / "examples" / "mnist.py"
SHOWN_S = 30.0  # length of the animation; the run itself takes minutes
FRAMES = 90
DRAWN_S = 45.0  # seconds of the run in run.svg: long enough for a few lives of each machine


def main(run_dir: Annotated[Path | None, typer.Option(help="Directory of the run.")] = None) -> None:
    """Record a run and draw both pictures."""
    run = run_dir or Path(tempfile.mkdtemp()) / "demo"
    command = [
        *(str(Path(sys.executable).parent / "gridml"), "run", str(EXAMPLE), "--workers", "4"),
        *("--lifetime", "normal(45m,10m)", "--speedup", "300", "--run-dir", str(run)),
    ]
    frames = record(command, Terminal(columns=110, lines=34))
    (FOLDER / "demo.svg").write_text(animated(frames, FRAMES, SHOWN_S), "utf-8")
    draw_run(run, FOLDER / "run.svg", DRAWN_S)


if __name__ == "__main__":
    typer.run(main)
