"""`gridml.simulate`: a run on machines that are only imagined, by the real master, under a clock that jumps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridml.api.displays import CallbackView, NoView, OnEvent, check_display
from gridml.api.handle import Run, restored_process_state, user_traceback_shown
from gridml.api.program_file import InitialValues, source_of, split_initial_values, write_state_dicts
from gridml.errors import StorageError, UsageError
from gridml.model.loading import check_guarded
from gridml.model.program import Program
from master.backends.simulated_plugin import SimulationOptions, simulate_options
from master.state.options import fields_of, takes, values_of
from master.store.run_names import claim_root

if TYPE_CHECKING:
    from master.simulation.world import World
    from master.store.journal import Report
    from master.store.rundir import RunDirectory

COST_PROGRAM = "cost.py"  # in the run directory, where every run keeps its program


@takes(simulate_options)
def simulate(
    program: Program | str | os.PathLike[str] | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    init_from: InitialValues | None = None,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Run:
    """Play a run on machines that are only imagined, as `gridml simulate` does: it really trains a program, or without
    one workers only take time. The same seed gives the same ledger, by call and by command.

    Options are those of the command, called as there with `_` for `-`: `workers=4`, `cost="t_x=0.05,push=0.5"`,
    `lifetime="exponential(45m)"`, `seed=1`. `init_from` is as `gridml.run` takes it. Times of its report and of its
    events are simulated. Raises as `gridml.run` does.
    """
    call = "gridml.simulate"
    check_guarded(call)
    check_display(call, "none", on_event)
    named, states = split_initial_values(init_from)
    values = values_of(call, simulate_options(), {**options, "run_dir": run_dir, "init_from": named})
    source = None if program is None else source_of(program, call)
    name = "cost" if source is None else source.file.stem
    heard = CallbackView(NoView(), on_event)

    with user_traceback_shown(), restored_process_state(), claim_root(values["run_dir"], name) as root:
        placed = None if source is None else source.placed(root)
        if states is not None:
            values["init_from"] = str(write_state_dicts(states, root, call))
        world = make_world(placed, values, root)
        world.tick = heard.turn
        play_run(world, root, lambda *event: heard.event(world.clock.now_s, *event))
    heard.turn()
    return Run(root)


def make_world(program: Path | None, values: Mapping[str, Any], root: Path) -> World:
    """Make the world of a run in `root`, of a program's file or of workers that only take time, by the values of
    options. Raises UsageError for those that make no sense."""
    from master.simulation.options import check_batch, scenario_for, settings_for
    from master.simulation.world import World
    from master.store.rundir import RunDirectory
    from remote.stepped import Trainer

    options = SimulationOptions(**fields_of(SimulationOptions, values))
    if program is not None and options.vertices is not None:
        raise UsageError("got both a program and --vertices; expected one of them: a program has its own vertices.")
    directory = RunDirectory(root)
    file = directory.saved_program(Path(COST_PROGRAM)).program.absolute() if program is None else program.absolute()
    settings = settings_for(options, file, values)
    scenario = scenario_for(options, settings)
    if program is None:
        _write(directory, file, 100_000 if options.vertices is None else options.vertices, settings.epochs or 1)
    trainer = None if program is None else Trainer(file, scenario.costs, settings.seed)
    if trainer is not None:
        check_batch(scenario, settings.silent_s, trainer.batch)
    return World(settings, scenario, trainer)


def play_run(world: World, root: Path, report: Report) -> None:
    """Play a run in `root` to its end; `report` is told of its events. Raises UsageError for one that is too large, and
    as a run does."""
    from master.simulation.world import play

    try:
        play(world, root, report)
    except MemoryError:
        raise UsageError("this simulation does not fit into memory; expected fewer --vertices or --workers.") from None


def _write(directory: RunDirectory, file: Path, vertices: int, epochs: int) -> None:
    """Make the run directory with the program of which only the costs matter. Raises UsageError, StorageError."""
    from master.simulation import cost_only_worker

    directory.create()
    try:
        file.parent.mkdir(exist_ok=True)
        with file.open("x") as new:
            new.write(cost_only_worker.source(vertices, epochs))
    except FileExistsError:
        raise UsageError(f"{file} is there already, and no run is; name another --run-dir.") from None
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error}. Make room, or name another --run-dir.") from error
