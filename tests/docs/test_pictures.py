"""The README's pictures: a recorded terminal as an animated SVG, and a run's ledger as a drawing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import gridml
from docs.pictures.ledger_drawing import draw_run
from docs.pictures.terminal_recording import Terminal, animated, record

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "tally.py"
SVG = "{http://www.w3.org/2000/svg}"


def test_what_a_command_prints_is_in_the_animation() -> None:
    recording = record(["sh", "-c", r"printf 'plain \033[1;31mloud\033[0m a<b'"], Terminal(columns=40, lines=5))
    picture = ET.fromstring(animated(recording, frames=4, shown_s=2))
    texts = {text.text: text.get("class") for text in picture.iter(f"{SVG}text")}
    assert texts == {"plain": "default", "loud": "red b", "a<b": "default"}


def test_a_command_that_fails_is_no_picture() -> None:
    with pytest.raises(RuntimeError, match=r"ended with 3:\nwhy"):
        record(["sh", "-c", "echo why; exit 3"], Terminal(columns=40, lines=5))


def test_a_run_is_drawn_from_its_ledger(tmp_path: Path) -> None:
    gridml.simulate(
        PROGRAM,
        workers=2,
        cost="t_x=0.01,push=0.1",
        lifetime="exponential(5)",
        run_dir=tmp_path / "run",
    )
    draw_run(tmp_path / "run", tmp_path / "run.svg")
    assert ET.parse(tmp_path / "run.svg").getroot().tag == f"{SVG}svg"
