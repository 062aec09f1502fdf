"""A run that is driven from a call: shown as fits, and leaving the caller's process as it was."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gridml.calls.displays import Display, Heard, OnEvent, view_for
from gridml.calls.handle import Run
from gridml.calls.loading import explained, undisturbed

if TYPE_CHECKING:
    from master.environment import Environment
    from master.run import Run as MasterRun


def drive(
    root: Path,
    begin: Callable[[Environment], MasterRun],
    on_event: OnEvent | None,
    display: Display,
    *,
    resumed: bool,
) -> Run:
    """Begin a run, or take one up that is to be `resumed`, and drive it to its end. Raises as a run does, and
    KeyboardInterrupt where it was interrupted, between two turns."""
    from master.views.driving import Signals, Stopped, drive_shown

    signals = Signals()
    main = threading.current_thread() is threading.main_thread()
    caught = signals.caught((signal.SIGINT,)) if main else contextlib.nullcontext()
    heard = Heard(view_for(display, root.name), on_event)

    def turn() -> None:
        signals.turn()
        heard.turn()

    try:
        with explained(), undisturbed(), caught, heard:
            drive_shown(root, begin, heard, turn, resumed=resumed)
    except Stopped:
        interrupt = KeyboardInterrupt()
        interrupt.add_note(f"{root} stands at its last credit. Go on with gridml.resume({str(root)!r}).")
        raise interrupt from None
    heard.turn()
    return Run(root)
