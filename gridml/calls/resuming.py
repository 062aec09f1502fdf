"""`gridml.resume`: a run goes on, with other numbers where they may be others."""

from __future__ import annotations

import os
from typing import Any

from gridml.calls.displays import Display, OnEvent, check_shown
from gridml.calls.driving import drive
from gridml.calls.handle import Run
from gridml.calls.options import values_of
from gridml.model.loading import check_guarded

_AT_A_TERMINAL = ("as_json", "seed", "run")


def resume(
    run: Run | str | os.PathLike[str],
    *,
    epochs: int | None = None,
    workers: int | None = None,
    on_event: OnEvent | None = None,
    display: Display = "auto",
    **options: Any,
) -> Run:
    """Go on with a run from its last credit, whatever ended it, as `gridml resume` does; return when it has ended. One
    that has finished goes on where `epochs` says that it has more of them.

    Options that are given hold from now on; they are those of the command, called as there with `_` for `-`. `on_event`
    and `display` as with `gridml.run`. Raises as that does, and RunError where another master drives the run.
    """
    from gridml.commands.resume import resume_parameters, taking_up

    check_guarded("gridml.resume")
    check_shown("gridml.resume", display, on_event)
    root = Run(run).run_dir
    given = {**options, "epochs": epochs, "workers": workers}
    values = {**values_of("gridml.resume", resume_parameters(), given, _AT_A_TERMINAL), "run": root}
    return drive(root, taking_up(values), on_event, display, resumed=True)
