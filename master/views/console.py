"""A terminal on which text is text."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from gridml.protocol.text import printable


@final
class PlainConsole(Console):
    """Prints what is written on it as it stands, for it may be a metric's name, a machine's, or a worker's last words:
    markup is not interpreted, and what a terminal would obey is shown as an escape. `width` in columns, None: as the
    terminal has."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield Segment(printable(text, sys.maxsize), segment.style)
