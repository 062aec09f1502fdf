"""Logger for TensorBoard: event files in `tensorboard/` of the run directory (`tensorboard --logdir RUN`).

Each master writes a file of its own. A point is one record with a checksum, so it is complete or absent. The steps that
exist are read back from the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

from master.telemetry.loggers.base import CountingLogger, LoggerPlugin, Point, named

FOLDER = "tensorboard"
_FILES = "events.out.tfevents.*"


@final
class TensorBoard(CountingLogger):
    """Writes scalars `train/NAME` and `evaluate/NAME`."""

    def __init__(self, root: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        super().__init__()
        folder = root / FOLDER
        folder.mkdir(exist_ok=True)
        for file in sorted(folder.glob(_FILES)):
            self._read(file)
        self._writer = EventFileWriter(str(folder))

    def _read(self, file: Path) -> None:
        """Count the points in an event file; its reader ignores a record that a kill cut short."""
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event

        for event in map(Event.FromString, RawEventFileLoader(str(file)).Load()):
            for value in event.summary.value:
                self.count(value.tag.partition("/")[0], event.step)

    def write(self, points: Sequence[Point]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in named(point).items()]
            self._writer.add_event(Event(wall_time=point.at_s, step=point.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def plugin() -> LoggerPlugin:
    return LoggerPlugin("tensorboard", TensorBoard, ("tensorboard",), "pip install tensorboard")
