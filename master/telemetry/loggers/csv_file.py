"""Logger that writes metrics.csv: one row per number of a point, because the set of names changes over a run.

A kill may leave only some rows of the last point. So a new master drops the last point, and it is written again.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import final

from gridml.protocol.foreign import one_line
from master.telemetry.loggers.base import CountingLogger, LoggerPlugin, Point
from master.telemetry.loggers.json_lines import append, whole_lines

FILE = "metrics.csv"
# Where a spreadsheet would begin a formula, in a cell that may also end at a semicolon. An apostrophe is put there: a
# worker chooses the names that it logs under.
_FORMULA = re.compile(r"(^|;)(?=\s*[-=+@\uff0d\uff1d\uff0b\uff20])")
COLUMNS = ("kind", "step", "epoch", "at_s", "name", "value")


@final
class CsvFile(CountingLogger):
    """Appends to the file, which is read once when it is opened."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._path = root / FILE
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


def plugin() -> LoggerPlugin:
    return LoggerPlugin("csv", CsvFile)
