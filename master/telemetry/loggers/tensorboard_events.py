"""TensorBoard's event files in `tensorboard/` of the run directory: `tensorboard --logdir RUN`.

Each master writes a file of its own. A point is one record with a checksum, which is there whole or not at all; which
steps are there is read from the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from master.telemetry.loggers.base import Logger, LoggerPlugin, Point

FOLDER = "tensorboard"
_FILES = "events.out.tfevents.*"


@final
class TensorBoard(Logger):
    """Writes scalars `train/NAME` and `evaluate/NAME`."""

    def __init__(self, root: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = root / FOLDER
        folder.mkdir(exist_ok=True)
        self._last = _last_steps(sorted(folder.glob(_FILES)))
        self._writer = EventFileWriter(str(folder))

    def last(self) -> Mapping[str, int]:
        return self._last

    def write(self, points: Sequence[Point]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [
                Summary.Value(tag=f"{point.kind}/{name}", simple_value=value) for name, value in point.values.items()
            ]
            self._writer.add_event(Event(wall_time=point.at_s, step=point.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _last_steps(files: Sequence[Path]) -> dict[str, int]:
    """Return the last step of each kind in event files; a record that a kill cut short is none."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    last: dict[str, int] = {}
    for file in files:
        for record in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(record)
            for value in event.summary.value:
                kind = value.tag.partition("/")[0]
                last[kind] = max(event.step, last.get(kind, 0))
    return last


def plugin() -> LoggerPlugin:
    return LoggerPlugin("tensorboard", TensorBoard, ("tensorboard",), "pip install 'gridml[tensorboard]'")
