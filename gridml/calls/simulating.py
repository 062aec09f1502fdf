"""`gridml.simulate`: a run on machines that are only imagined."""

from __future__ import annotations

import inspect
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from gridml.calls.displays import Heard, Nowhere, OnEvent, check_shown
from gridml.calls.driving import explained, undisturbed
from gridml.calls.first_values import FirstValues, apart, written
from gridml.calls.handle import Run
from gridml.calls.options import values_of
from gridml.calls.sources import source_of
from gridml.model.loading import check_guarded
from gridml.model.program import Program
from gridml.run_names import claimed_root

_ELSEWHERE = ("program", "run_dir", "as_json", "campaign")


def simulate(
    program: Program | str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    init_from: FirstValues | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Run:
    """Play a run on machines that are only imagined, as `gridml simulate` does: it really trains a program, or without
    one workers only take time. The same seed gives the same ledger, by call and by command.

    Options are those of the command, called as there with `_` for `-`: `cost="t_x=0.05,push=0.5"`,
    `lifetime="exponential(45m)"`, `seed=1`. `init_from` is as `gridml.run` takes it. Times of its report and of its
    events are simulated. Raises as `gridml.run` does.
    """
    from gridml.commands import simulate as command
    from master.simulation.options import SimulationOptions

    call = "gridml.simulate"
    check_guarded(call)
    check_shown(call, "none", on_event)
    parameters = inspect.signature(command.simulate, eval_str=True).parameters.values()
    named, states = apart(init_from)
    values = values_of(call, parameters, {**options, "workers": workers, "init_from": named}, _ELSEWHERE)
    wanted = SimulationOptions(**{name: value for name, value in values.items() if name not in _ELSEWHERE})
    source = None if program is None else source_of(program, call)
    name = "cost" if source is None else source.file.stem
    heard = Heard(Nowhere(), on_event)

    with explained(), undisturbed(), claimed_root(None if run_dir is None else Path(run_dir), name) as root:
        placed = None if source is None else source.placed(root)
        if states is not None:
            wanted = replace(wanted, init_from=str(written(states, root, call)))
        world = command.world_for(placed, wanted, root)
        world.tick = heard.turn
        command.played(world, root, lambda *event: heard.event(world.clock.now_s, *event))
    heard.turn()
    return Run(root)
