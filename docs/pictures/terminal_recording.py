"""Recording of a command on a pseudo-terminal with pyte, drawn as an animated SVG."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

import pyte

WIDTH, HEIGHT = 7.8, 17.0  # of a character, in SVG units
MARGIN = 12.0
COLOURS = {
    "default": "#d4d4d4",
    "black": "#808080",
    "red": "#f47067",
    "green": "#7ec97e",
    "brown": "#e2c26b",
    "blue": "#6cb6ff",
    "magenta": "#dcbdfb",
    "cyan": "#66d0d0",
    "white": "#ffffff",
}
"""Colours by pyte's names ("brown" is the usual yellow). Bright variants are drawn in the same colours."""


@dataclass(frozen=True)
class StyledText:
    """Adjacent characters of a line with the same style."""

    column: int  #: of the first character, from 0
    text: str
    colour: str
    bold: bool


Screen = tuple[tuple[StyledText, ...], ...]


@dataclass(frozen=True)
class Terminal:
    """A terminal's size, in characters."""

    columns: int
    lines: int


@dataclass(frozen=True)
class Recording:
    """Screens that a terminal showed, in order."""

    terminal: Terminal
    at_s: list[float]  #: time of each screen, in seconds since the command began
    screens: list[Screen]


def record(command: Sequence[str], terminal: Terminal) -> Recording:
    """Run `command` to its end on a pseudo-terminal. Raises RuntimeError, with the last screen, if it fails."""
    screen = pyte.Screen(terminal.columns, terminal.lines)
    stream = pyte.ByteStream(screen)
    recording = Recording(terminal, [], [])
    begun = time.monotonic()
    child, end = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(terminal.columns), LINES=str(terminal.lines))
        os.execvp(command[0], list(command))
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", terminal.lines, terminal.columns, 0, 0))
    for output in _chunks(end):
        stream.feed(output)
        recording.at_s.append(time.monotonic() - begun)
        recording.screens.append(_seen(screen))
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}:\n" + _text(screen))
    return recording


def animated(recording: Recording, frames: int, shown_s: float) -> str:
    """Return an SVG that loops over at most `frames` screens, evenly spaced in the command's time, in `shown_s`
    seconds. The last screen stays for another fifth of that."""
    lasted_s = recording.at_s[-1]
    chosen = [_at(recording, lasted_s * (number + 1) / frames) for number in range(frames)]
    # Equal screens share a frame, and equal lines are defined once and referenced, to keep the file small.
    kept = [(screen, len(list(alike))) for screen, alike in groupby(chosen)]
    kept[-1] = (kept[-1][0], kept[-1][1] + frames // 5)
    total = sum(number for _, number in kept)
    lines = {
        line: f"l{number}" for number, line in enumerate(dict.fromkeys(line for s, _ in kept for line in s if line))
    }
    width = recording.terminal.columns * WIDTH + 2 * MARGIN
    height = recording.terminal.lines * HEIGHT + 2 * MARGIN
    steps, passed = [], 0
    for number, (_, times) in enumerate(kept):
        steps.append(f"{100 * passed / total:.3f}%{{transform:translateX({-number * width:.1f}px)}}")
        passed += times
    symbols = [f'<g id="{name}">{"".join(map(_drawn, line))}</g>' for line, name in lines.items()]
    screens = [
        f'<svg x="{number * width:.1f}">'
        + "".join(f'<use href="#{lines[line]}" y="{row * HEIGHT:.0f}"/>' for row, line in enumerate(screen) if line)
        + "</svg>"
        for number, (screen, _) in enumerate(kept)
    ]
    colours = "".join(f".{name}{{fill:{colour}}}" for name, colour in COLOURS.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
            "<style>text{white-space:pre;font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}",
            f".b{{font-weight:bold}}{colours}",
            f"#film{{animation:play {shown_s * total / frames:.1f}s steps(1,end) infinite}}",
            f"@keyframes play{{{''.join(steps)}}}</style>",
            f"<defs>{''.join(symbols)}</defs>",
            f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#1e2127"/>',
            f'<g id="film">{"".join(screens)}</g>',
            "</svg>",
            "",
        ]
    )


def _chunks(end: int) -> Iterator[bytes]:
    while True:
        try:
            output = os.read(end, 1 << 16)
        except OSError:  # EIO: on Linux, the other end of a pseudo-terminal was closed
            return
        if not output:
            return
        yield output


def _seen(screen: pyte.Screen) -> Screen:
    return tuple(tuple(_runs(screen, row)) for row in range(screen.lines))


def _runs(screen: pyte.Screen, row: int) -> Iterator[StyledText]:
    cells = [screen.buffer[row][column] for column in range(screen.columns)]
    for (colour, bold), group in groupby(enumerate(cells), key=lambda each: (each[1].fg, each[1].bold)):
        found = list(group)
        text = "".join(cell.data for _, cell in found)
        if text.strip():
            yield StyledText(found[0][0], text.rstrip(), colour.removeprefix("bright"), bold)


def _text(screen: pyte.Screen) -> str:
    return "\n".join(line.rstrip() for line in screen.display)


def _at(recording: Recording, at_s: float) -> Screen:
    """Return the screen at a time."""
    seen = [screen for when, screen in zip(recording.at_s, recording.screens, strict=True) if when <= at_s]
    return seen[-1] if seen else recording.screens[0]


def _drawn(run: StyledText) -> str:
    """Return text as an SVG element with a fixed `textLength`, because a reader's font may have another width."""
    colour = run.colour if run.colour in COLOURS else "default"
    indent = len(run.text) - len(run.text.lstrip())
    text = run.text.lstrip()
    x = MARGIN + (run.column + indent) * WIDTH
    return (
        f'<text class="{colour}{" b" if run.bold else ""}" x="{x:.1f}" y="{MARGIN + 13:.0f}"'
        f' textLength="{len(text) * WIDTH:.1f}">{escape(text)}</text>'
    )
