"""A small run that is interrupted anywhere, resumed from its disk, and compared with the expected result: the replica,
the fields, the credits, and the metrics of each epoch.

The master is the real one, on real files. Workers are stepped (`remote.stepped`), so a run takes half a second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

from chunk_model.goodput import Costs
from gridml.errors import GridmlError
from gridml.protocol import bundle
from master.backends.script import Steady
from master.launch import resume, start
from master.ports.environment import Environment
from master.run import MasterRun
from master.simulation.result import verify_credits
from master.simulation.scenario import CrashPoints, Scenario
from master.simulation.world import START_S, World
from master.store.rundir import RunStatus
from master.store.settings import Settings
from master.views.report import report
from remote.stepped import Trainer

PROGRAMS = Path(__file__).parent / "programs"
CHAINS = (PROGRAMS / "chain.py", PROGRAMS / "chain_bsp.py")
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # temporary folders: no power of this machine is cut
WORKERS, CHUNK, PUSH_EVERY = 3, 60, 30
COSTS = Costs(exec_s=0.01)
LIMIT_S = 30.0  # timeout for a run, which takes half a second
MAX_ADVICE = 4  # errors in one run whose advice is followed
GRIDML = Path(sys.executable).with_name("gridml")


class Outcome(StrEnum):
    """The outcome of a run. Only the first three are allowed."""

    EXACT = "exact"
    ADVISED = "refused, exact after its advice"
    LOST = "refused, the run must be started again"
    UNADVISED = "refused, no advice that helps"
    WRONG = "silently wrong"
    CRASHED = "crashed"
    STUCK = "without an end"


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    outcome: Outcome
    text: str = ""  #: the output of the run, or the difference from the expected result


class Interrupted(BaseException):
    """The end of a master as if it were killed. A BaseException, so that the master does not handle it."""


def settings_of(program: Path) -> Settings:
    return Settings(program, workers=WORKERS, chunk=CHUNK, push_every=PUSH_EVERY)


def new_world(program: Path, later: int = 0) -> World:
    """Return fresh machines and workers, `later` days after the first ones."""
    world = World(settings_of(program), Scenario(Steady(WORKERS), COSTS), Trainer(program, COSTS))
    world.clock.advance(START_S + 86_400.0 * later)
    return world


def environment_of(world: World, reached: Callable[[str], None] = lambda point: None) -> Environment:
    """Return the environment of the next master in a world; `reached` is called with the name of each crash point."""
    environment = world.environment(lambda topic, text, facts: None)
    return replace(
        environment,
        hook=reached,
        mailboxes=lambda settings, directory: CrashPoints(environment.mailboxes(settings, directory), reached),
    )


def drive(world: World, run: MasterRun) -> None:
    """Drive a run to its end, or to the end of its master, which its workers survive."""
    world.drive(run)
    try:
        with run:
            run.finish()
    except BaseException:
        world.crashed = True
        raise


def begin(program: Path, root: Path) -> World:
    """Play a run from start to end."""
    world = new_world(program)
    drive(world, start(settings_of(program), root, environment_of(world)))
    return world


@dataclass(frozen=True)
class Moment:
    """A moment at which a run is interrupted."""

    name: str
    commits: tuple[int, ...]  #: the commits at which its masters end; none: the run has finished
    closed: bool = False  #: the last master closes its ledger too; by default it is killed


MOMENTS = (
    Moment("killed in the first epoch", (8,)),
    Moment("killed in the second epoch", (8, 26)),
    Moment("ended in the second epoch", (8, 26), closed=True),
    Moment("killed in the last epoch", (20, 45)),
    Moment("finished", ()),
)


def interrupt(program: Path, root: Path, image: Path, moment: Moment) -> World:
    """Play a run in `root` until a moment, and copy its directory to `image`. Its workers live on."""
    if not moment.commits:
        world = begin(program, root)
        shutil.copytree(root, image)
        return world
    world, at = new_world(program), 0

    def reached(name: str) -> None:
        nonlocal at
        at += name == "after-commit"
        if name == "after-commit" and at in moment.commits:
            if at == moment.commits[-1] and not moment.closed:
                shutil.copytree(root, image)
            world.crashed = True
            raise Interrupted

    take: Callable[[Environment], MasterRun] = lambda environment: start(settings_of(program), root, environment)  # noqa: E731
    for _ in moment.commits:
        with contextlib.suppress(Interrupted):
            drive(world, take(environment_of(world, reached)))
        take = lambda environment: resume(root, environment)  # noqa: E731
    if moment.closed:
        shutil.copytree(root, image)
    return world


def go_on(program: Path, root: Path, world: World | None) -> Result:
    """Resume a run as a user would, following the advice of each error, and compare it with the expected result.

    Without a `world` no worker has survived.
    """
    said: list[str] = []
    while True:
        living = new_world(program, 1 + len(said)) if world is None else world
        try:
            run = resume(root, environment_of(living))
            drive(living, run)
        except GridmlError as error:
            said.append(f"{type(error).__name__}: {error}")
            if re.search(r"start (it|the run) again with gridml run", str(error)):
                return Result(Outcome.LOST, "\n".join(said))
            commands = advised(str(error))
            if not commands or len(said) > MAX_ADVICE or not follow(commands):
                return Result(Outcome.UNADVISED, "\n".join(said))
            continue
        problem = wrong(program, root, run)
        if problem is not None:
            return Result(Outcome.WRONG, "\n".join([problem, *said]))
        return Result(Outcome.ADVISED if said else Outcome.EXACT, "\n".join(said))


def advised(text: str) -> list[str]:
    """Return the commands that an error advises, in order."""
    restored = re.search(r"Restore it: (.*?)(?:  |$)", text, re.MULTILINE)
    return restored[1].split(" && ") if restored else []


def follow(commands: list[str]) -> bool:
    """Run the commands that an error advises, except the `gridml resume` that must come last. Return True if it did."""
    for line in commands:
        if line.startswith("gridml resume "):
            return True
        subprocess.run(["sh", "-c", line], capture_output=True, env=shell(), check=True)
    return False


def shell() -> dict[str, str]:
    """Return an environment in which the command `gridml` is this checkout's."""
    return {**os.environ, "PATH": f"{GRIDML.parent}:{os.environ['PATH']}"}


# --- the expected result


@cache
def module_of(program: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"expected_{program.stem}", program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metrics_of(program: Path, epoch: int) -> dict[str, int]:
    """Return the expected metrics after a number of epochs."""
    expected = module_of(program).expected(epoch)
    names = {"total": "Word/total", "links": "Document/link", "seen": "Document/seen"}
    if "Cell/link" in expected:
        names = {"links": "Cell/link"}
    return {metric: int(expected[name].sum()) for metric, name in names.items()}


def wrong(program: Path, root: Path, run: MasterRun) -> str | None:
    """Return the first problem of a finished run: in the master's memory, files, credits or report; None if exact."""
    module = module_of(program)
    values = dict(run.parts.store.replica.state.tensors())
    for table in run.parts.spec.graph.local:
        values.update({f"{table.type.name}/{name}": table.columns[name] for name in table.type.mutable})
    if (problem := differing(values, module.expected(module.EPOCHS))) is not None:
        return problem
    return wrong_on_disk(program, root)


def differing(values: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str | None:
    """Describe the first field whose rows differ from the expected ones; None if all are equal."""
    for name, rows in expected.items():
        bad = (np.asarray(values[name]) != rows).reshape(len(rows), -1).any(axis=1)
        if bad.any():
            return f"{bad.sum()} of {len(rows)} rows of {name} are wrong"
    return None


def wrong_on_disk(program: Path, root: Path) -> str | None:
    """Return the first problem of a finished run's directory: trained replica, credits or report; None if exact."""
    module = module_of(program)
    replicated = {n: v for n, v in module.expected(module.EPOCHS).items() if n.startswith("Word/")}
    if replicated:
        _, trained = bundle.decode((root / "final.safetensors").read_bytes())
        if (problem := differing(trained, replicated)) is not None:
            return f"final.safetensors: {problem}"
    try:
        exact = verify_credits(root)
    except GridmlError as error:
        return f"credits: {error}"
    if (exact.credited, exact.finished) != (module.COUNT * module.EPOCHS, module.EPOCHS):
        return f"credits: {exact}"
    shown = report(root)
    if shown.status != RunStatus.FINISHED:
        return f"report: the status is {shown.status}"
    for row in shown.epochs:
        if (row.credited, row.duplicated, row.lost, row.left) != (module.COUNT, 0, 0, 0):
            return f"report: {row}"
        if row.metrics != metrics_of(program, row.epoch):
            return f"report: the metrics of epoch {row.epoch} are {row.metrics}"
    return None


# --- isolation in forked processes


def isolated(what: Callable[[], Result], limit_s: float = LIMIT_S) -> Result:
    """Call `what` in a fork of this process. A crash or a timeout of the fork is a result, too."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _report(what, writing)
    os.close(writing)
    try:
        payload = b""
        while select.select([reading], [], [], limit_s)[0]:
            part = os.read(reading, 65536)
            if not part:
                break
            payload += part
        else:
            os.kill(child, signal.SIGKILL)
            return Result(Outcome.STUCK, f"after {limit_s:g} s")
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Result(Outcome.CRASHED, signal.Signals(os.WTERMSIG(status)).name)
    outcome, _, text = payload.decode().partition("\n")
    return Result(Outcome(outcome), text)


def _report(what: Callable[[], Result], writing: int) -> None:
    """Write the result to the pipe and exit this process in any case: it must never return into the parent's code."""
    try:
        faulthandler.disable()
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        try:
            result = what()
        except BaseException:
            result = Result(Outcome.CRASHED, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(f"{result.outcome.value}\n{result.text}".encode())
    finally:
        os._exit(0)
