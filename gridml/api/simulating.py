"""`gridml.simulate`: the real master on simulated machines, under a virtual clock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridml.api.displays import CallbackView, Display, OnEvent, check_display, view_for
from gridml.api.handle import Run, restored_process_state, user_traceback_shown
from gridml.api.program_file import InitialValues, source_of, split_initial_values, write_state_dicts
from gridml.errors import StorageError, UsageError
from gridml.model.loading import check_guarded
from gridml.model.program import Program
from master.backends.simulated_plugin import SimulationOptions, simulate_options
from master.state.options import fields_of, takes, values_of
from master.store.rundir import claim_root

if TYPE_CHECKING:
    from master.simulation.world import World
    from master.store.journal import Report
    from master.store.rundir import RunDirectory

COST_PROGRAM = "cost.py"  # file in the run directory: the program that is generated for a simulation without a program


@takes(simulate_options)
def simulate(
    program: Program | str | os.PathLike[str] | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    init_from: InitialValues | None = None,
    on_event: OnEvent | None = None,
    display: Display = "none",
    **options: Any,
) -> Run:
    """Simulate a run, like `gridml simulate`. A program is really trained; without one, workers only let simulated
    time pass. The same seed gives the same ledger, whether by call or by command.

    Options are those of the command, with `_` for `-`: `workers=4`, `cost="t_x=0.05,push=0.5"`,
    `lifetime="exponential(45m)"`, `seed=1`. `init_from` and `display` are as in `gridml.run`. Times in the report and
    in events are simulated. Raises as `gridml.run` does.
    """
    call = "gridml.simulate"
    check_guarded(call)
    check_display(call, display, on_event)
    named, states = split_initial_values(init_from)
    values = values_of(call, simulate_options(), {**options, "run_dir": run_dir, "init_from": named})
    source = None if program is None else source_of(program, call)
    name = "cost" if source is None else source.file.stem
    view = CallbackView(view_for(display, name), on_event)

    with user_traceback_shown(), restored_process_state(), claim_root(values["run_dir"], name) as root, view:
        placed = None if source is None else source.materialise(root)
        if states is not None:
            values["init_from"] = str(write_state_dicts(states, root, call))
        world = make_world(placed, values, root)
        world.tick = view.turn  # raises an exception of `on_event` between two turns
        play_run(world, root, lambda *event: view.event(world.clock.now_s, *event))
    view.turn()
    return Run(root)


def make_world(program: Path | None, values: Mapping[str, Any], root: Path) -> World:
    """Return the simulated world of a run in `root`, from the values of the options. Without a program, write a program
    that only lets simulated time pass. Raises UsageError for wrong options."""
    from master.simulation.options import check_batch, scenario_for, settings_for
    from master.simulation.world import World
    from master.store.rundir import RunDirectory
    from remote.stepped import Trainer

    options = SimulationOptions(**fields_of(SimulationOptions, values))
    if program is not None and options.vertices is not None:
        raise UsageError("got a program and --vertices; expected only one: a program defines its own vertices.")
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
    """Simulate a run in `root` to its end, calling `report` with each event. Raises UsageError if the simulation does
    not fit into memory, and the errors of a run."""
    from master.simulation.world import play

    try:
        play(world, root, report)
    except MemoryError:
        raise UsageError("this simulation does not fit into memory; expected fewer --vertices or --workers.") from None


def _write(directory: RunDirectory, file: Path, vertices: int, epochs: int) -> None:
    """Create the run directory with a program that only lets simulated time pass. Raises UsageError if the program's
    file exists, StorageError if it cannot be written."""
    from master.simulation import cost_only_worker

    directory.create()
    try:
        file.parent.mkdir(exist_ok=True)
        with file.open("x") as new:
            new.write(cost_only_worker.source(vertices, epochs))
    except FileExistsError:
        raise UsageError(f"{file} exists already, but there is no run. Give another --run-dir.") from None
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error}. Free some space, or give another --run-dir.") from error
