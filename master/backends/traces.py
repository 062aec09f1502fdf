"""Traces that a user names on the command line: when machines came and went."""

from __future__ import annotations

from pathlib import Path

from chunk_model import trace
from chunk_model.trace import TraceError, TraceEvent
from gridml.errors import UsageError


def read_trace(path: Path) -> tuple[TraceEvent, ...]:
    """Return the events of a trace file. Raises UsageError when it cannot be read."""
    try:
        return trace.read(path)
    except OSError as error:
        raise UsageError(f"--trace: {path} cannot be read: {error.strerror}. Name a file that is there.") from error
    except TraceError as error:
        raise UsageError(f"--trace: {error}") from error


def most_at_once(events: tuple[TraceEvent, ...]) -> int:
    """Return how many nodes of a trace are there at once, at most."""
    present = most = 0
    for event in events:
        present += 1 if event.joined else -1
        most = max(most, present)
    return most
