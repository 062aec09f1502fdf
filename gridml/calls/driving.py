"""A run that is driven from a call: shown as fits, and leaving the caller's process as it was."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gridml.calls.displays import Display, Heard, OnEvent, view_for
from gridml.calls.handle import Run
from gridml.errors import DataError, GridmlError, UserCodeError

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


@contextmanager
def explained() -> Iterator[None]:
    """Let an error of the user's own code show its traceback, beside gridml's message."""
    try:
        yield
    except GridmlError as error:
        if isinstance(error, UserCodeError | DataError) and error.traceback_text:
            error.add_note(error.traceback_text)
        raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """What a master sets for its process is put back: threads of torch, the states of random generators, and where
    modules are found."""
    import numpy as np

    path, finders = [*sys.path], [*sys.meta_path]
    drawn, drawn_numpy, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
    threads, drawn_torch = (0, None) if torch is None else (torch.get_num_threads(), torch.random.get_rng_state())
    try:
        yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_numpy)
        sys.path[:], sys.meta_path[:] = path, finders
        if torch is not None:
            torch.set_num_threads(threads)
            torch.random.set_rng_state(drawn_torch)
