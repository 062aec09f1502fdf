"""Console output that is safe for foreign text, and JSON output."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from typing import Any, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from gridml.protocol.foreign import one_line, printable


@final
class PlainConsole(Console):
    """A rich console that prints text literally and on one line: no markup, no emoji, control characters escaped.

    Output includes text from other machines, such as machine names and a worker's last output, which must not be able
    to control the terminal. `width` is in columns; None: that of the terminal.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, str):
            renderable = one_line(renderable)
        elif isinstance(renderable, Text):
            renderable = Text("\\n").join(renderable.split("\n", allow_blank=True))
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield Segment(printable(text, sys.maxsize), segment.style)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON. NaN and infinity become null, because JSON has neither."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
