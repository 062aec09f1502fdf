"""Loggers that write metrics.jsonl, one JSON object per point, and metrics.csv, one row per number of a point.

A line of metrics.jsonl that a kill cut short is dropped. A kill may leave only some rows of the last point in
metrics.csv. So a new master drops the last point, and it is written again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, final

from gridml.protocol.foreign import one_line
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


def json_plugin() -> LoggerPlugin:
    return LoggerPlugin("json", JsonLines)


CSV_FILE = "metrics.csv"
# Where a spreadsheet would begin a formula, in a cell that may also end at a semicolon. An apostrophe is put there: a
# worker chooses the names that it logs under.
_FORMULA = re.compile(r"(^|;)(?=\s*[-=+@\uff0d\uff1d\uff0b\uff20])")
COLUMNS = ("kind", "step", "epoch", "at_s", "name", "value")


@final
class CsvFile(CountingLogger):
    """Appends to the file, which is read once when it is opened."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._path = root / CSV_FILE
        if not self._path.exists():
            append(self._path, _text([COLUMNS]))
            return
        with self._path.open("rb") as file:
            end = self._read(file.read())
        os.truncate(self._path, end)
        if not end:
            append(self._path, _text([COLUMNS]))

    def _read(self, content: bytes) -> int:
        """Count all points but the last; return the offset at which that one starts, where the file is cut."""
        end, before, point = 0, dict[str, int](), ("", 0)  # start of the current point, and counts before it
        upto = 0  # end of the last complete row
        for at, line in whole_lines(io.BytesIO(content)):
            row = next(csv.reader([line.decode()]), [])
            if len(row) != len(COLUMNS):
                break
            if row[0] != COLUMNS[0]:
                here = row[0], int(row[1])
                if here != point:
                    end, before, point = upto, dict(self._last), here
                self.count(*here)
            upto = at
        if not point[0]:
            return upto
        self._last = before
        return end

    def write(self, points: Sequence[Point]) -> None:
        rows = [
            (point.kind, point.step, point.epoch, point.at_s, _FORMULA.sub(r"\1'", one_line(name)), value)
            for point in points
            for name, value in point.values.items()
        ]
        append(self._path, _text(rows))


def _text(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def csv_plugin() -> LoggerPlugin:
    return LoggerPlugin("csv", CsvFile)
