"""A console that prints text as text, and the JSON that programs read of a run."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from typing import Any, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from gridml.protocol.foreign import printable


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


def json_text(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON. What JSON has no number for, NaN and infinity, is null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
