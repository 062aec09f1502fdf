"""Logger that writes metrics.jsonl: one JSON object per point. A line cut short by a kill is dropped."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, final

from master.telemetry.loggers.base import CountingLogger, LoggerPlugin, Point

FILE = "metrics.jsonl"


def whole_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield (end offset, content) of each complete line."""
    end = 0
    for line in file:
        end += len(line)
        if line.endswith(b"\n"):
            yield end, line


def append(path: Path, lines: bytes) -> None:
    """Append lines to a file in one write, so that a kill leaves a prefix of them at most."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while lines:
            lines = lines[os.write(handle, lines) :]
    finally:
        os.close(handle)


@final
class JsonLines(CountingLogger):
    """Appends to the file, which is read once when it is opened."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._path = root / FILE
        if self._path.exists():
            upto = 0
            with self._path.open("rb") as file:
                for end, line in whole_lines(file):
                    point: dict[str, Any] = json.loads(line)
                    self.count(point["kind"], int(point["step"]))
                    upto = end
            os.truncate(self._path, upto)

    def write(self, points: Sequence[Point]) -> None:
        append(self._path, "".join(_line(point) for point in points).encode())


def _line(point: Point) -> str:
    """Return a point as JSON. NaN and infinity become null, because JSON has neither."""
    values = {name: value if math.isfinite(value) else None for name, value in point.values.items()}
    return json.dumps({**asdict(point), "values": values}, allow_nan=False) + "\n"


def plugin() -> LoggerPlugin:
    return LoggerPlugin("json", JsonLines)
