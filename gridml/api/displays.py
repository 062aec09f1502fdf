"""Displays of a run that a call from Python drives: terminal, plain lines, notebook, and the `on_event` callback.

`drive` runs the master in the caller's process and restores that process's state afterwards.
"""

from __future__ import annotations

import contextlib
import html
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final, get_args

from gridml.api.handle import Event, Run, restored_process_state, user_traceback_shown
from gridml.api.program_file import ipython_shell
from gridml.errors import UsageError
from gridml.protocol.foreign import one_line
from master.store.rundir import NO_FACTS, EventFacts, bounded
from master.views.live import Lines, LiveView, Screen, clock_time, progress_line

if TYPE_CHECKING:
    from master.ports.environment import Environment
    from master.run import MasterRun
    from master.views.progress import RunProgress


Display = Literal["auto", "terminal", "plain", "notebook", "none"]
OnEvent = Callable[[Event], object]
_SHOWN = 8  # number of newest events listed below a notebook's progress bars


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel."""
    return getattr(ipython_shell(), "kernel", None) is not None


def check_display(call: str, display: object, on_event: object) -> None:
    """Raise UsageError for an unknown display and for an `on_event` that is not callable."""
    if display not in get_args(Display):
        raise UsageError(f"{call} got display={display!r}; expected one of {', '.join(get_args(Display))}.")
    if on_event is not None and not callable(on_event):
        raise UsageError(
            f"{call} got on_event={on_event!r}; expected a function that takes a gridml.Event, as in on_event=print."
        )


def view_for(display: Display, title: str) -> LiveView:
    """Return the view for a display; "auto" depends on where this process runs."""
    if display == "auto":  # a notebook is tested first, because its stdout is no terminal either
        display = "notebook" if in_notebook() else "terminal" if sys.stdout.isatty() else "plain"
    if display == "notebook":
        return Notebook(title)
    if display == "terminal":
        from master.views.console import PlainConsole

        return Screen(PlainConsole(), title)
    return Lines(sys.stdout) if display == "plain" else NoView()


@final
class NoView(LiveView):
    """Shows nothing."""

    every_s = 3600.0  # long, because the ledger is read before each `progress`

    def event(self, at_s: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        return None

    def progress(self, now: float, progress: RunProgress) -> None:
        return None


@final
class Notebook(LiveView):
    """Progress bars, figures and the last events below a notebook cell. The output is updated in place, so that a long
    run does not fill the notebook."""

    every_s = 1.0

    def __init__(self, title: str) -> None:
        self._title = title
        self._events: deque[tuple[float, str, str]] = deque(maxlen=_SHOWN)  # (seconds since 1970, topic, text)
        self._progress: RunProgress | None = None  # None until the first call of `progress`
        self._handle: Any = None  # IPython's display handle; made at the first update

    def event(self, at_s: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        self._events.append((at_s, topic, text))
        self._show()

    def progress(self, now: float, progress: RunProgress) -> None:
        self._progress = progress
        self._show()

    def _show(self) -> None:
        jupyter: Any = import_module("IPython.display")  # installed wherever a kernel runs, but no dependency of gridml
        shown = jupyter.HTML(self._html())
        if self._handle is None:
            self._handle = jupyter.display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def _html(self) -> str:
        rows = "".join(
            f"<div>{clock_time(at_s)} <b>{_escaped(topic)}</b> {_escaped(text)}</div>"
            for at_s, topic, text in self._events
        )
        figures = (
            ""
            if self._progress is None
            else f"{_bars(self._progress)}<div>{_escaped(progress_line(self._progress))}</div>"
        )
        return (
            f'<div style="font-size:0.9em"><b>{_escaped(self._title)}</b>{figures}'
            f'<div style="font-family:monospace;white-space:pre-wrap">{rows}</div></div>'
        )


def _bars(progress: RunProgress) -> str:
    parts = [(f"epoch {progress.epoch}", progress.credited, progress.vertices)]
    parts += [("run", progress.all_credited, progress.total)] if progress.total else []
    return "".join(
        f'<div>{label} <progress value="{part}" max="{max(1, whole)}" style="width:60%;vertical-align:middle" '
        f'aria-label="{label}"></progress> {part / max(1, whole):.0%}</div>'
        for label, part, whole in parts
    )


def _escaped(text: str) -> str:
    return html.escape(one_line(text))


@final
class CallbackView(LiveView):
    """Forwards to another view, and calls `on_event` with every event.

    An exception from `on_event` is stored, and raised between two turns of the run's loop, because a transaction can be
    open when a turn reports an event.
    """

    def __init__(self, view: LiveView, on_event: OnEvent | None) -> None:
        self._view = view
        self._on_event = on_event
        self._error: BaseException | None = None  # once set, `on_event` is not called again
        self.every_s = view.every_s

    def __enter__(self) -> CallbackView:
        self._view.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._view.__exit__(*error)

    def event(self, at_s: float, topic: str, text: str, facts: EventFacts = NO_FACTS) -> None:
        self._view.event(at_s, topic, text, facts)
        if self._on_event is not None and self._error is None:
            try:
                self._on_event(Event(at_s, topic, text, bounded(facts)))
            except BaseException as error:
                self._error = error

    def progress(self, now: float, progress: RunProgress) -> None:
        self._view.progress(now, progress)

    def turn(self) -> None:
        """Raise the stored exception of `on_event`, if any."""
        if self._error is not None:
            raise self._error


def drive(
    root: Path,
    begin: Callable[[Environment], MasterRun],
    on_event: OnEvent | None,
    display: Display,
    *,
    resumed: bool,
) -> Run:
    """Start or resume a run with `begin`, and drive it to its end. Raises the errors of the run. After SIGINT, raises
    KeyboardInterrupt between two turns of the run's loop."""
    from master.views.terminal import Signals, Stopped, drive_with_view

    signals = Signals()
    main = threading.current_thread() is threading.main_thread()  # Python delivers signals to no other thread
    caught = signals.caught((signal.SIGINT,)) if main else contextlib.nullcontext()
    shown = CallbackView(view_for(display, root.name), on_event)

    def turn() -> None:
        signals.turn()
        shown.turn()

    try:
        with user_traceback_shown(), restored_process_state(), caught, shown:
            drive_with_view(root, begin, shown, turn, resumed=resumed)
    except Stopped:
        interrupt = KeyboardInterrupt()
        interrupt.add_note(f"{root} stands at its last credit. Resume with gridml.resume({str(root)!r}).")
        raise interrupt from None
    shown.turn()  # raises what `on_event` raised for events after the last turn
    return Run(root)
