"""A program: the graph, f, and how the result is evaluated."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gridml.errors import GridmlError, Interruption, ProgramError, UserCodeError
from gridml.model.goals import EarlyStopping, Goal, kept_goal
from gridml.model.graph import Graph
from gridml.model.layers import layers_of
from gridml.model.order import Shuffle
from gridml.model.progress import Progress
from gridml.model.schedule import Schedule, TorchSchedule, check_schedule, factor_of, linear_decay
from gridml.model.update import Update, argument_hints, progress_place, vertex_class
from gridml.model.user_traceback import user_traceback
from gridml.model.vertex import VertexType, describe, reachable
from gridml.protocol.text import described

Metrics = dict[str, Any]

MOST_EPOCHS = 10**9


@dataclass(frozen=True)
class Program:
    """What to train. `graph` and `evaluate` run on the submit host only, `update` on the workers.

    `evaluate` takes the vertices its annotations name and returns numbers (or lists of numbers) by name. `schedule`
    gives the learning-rate factor for the credited share of the run (0 to 1), or for a `gridml.Progress`: see
    `by_step`, `warmup` and `torch_schedule`. f and `evaluate` may take a `gridml.Progress`, too. `shuffle` defaults to
    "all" when every replicated vertex is a module (placement is degenerate), to "block" otherwise. `placement` puts
    vertices that touch the same replicated rows together, for one worker: "auto" where that pays, "none", or by a
    method of `gridml place`.

    By default the last vertices of one epoch and the first of the next are trained at the same time, so that no worker
    waits. With `overlap=False` an epoch opens when every vertex of the one before is credited and merged: f and g read
    complete sums of earlier epochs, and workers that run out of vertices wait for the others at each epoch's end.

    Every `evaluate_every` epochs, and after the last, evaluate is called. `early_stopping` ends the run before `epochs`
    are trained, and `keep="best:loss"` keeps the replica with the best value of a metric, in best.safetensors.
    `loggers` are names such as "tensorboard": where figures go beside metrics.csv and metrics.jsonl.
    """

    graph: Callable[[], Graph]
    update: Update
    evaluate: Callable[..., Metrics] | None = None
    epochs: int = 1
    schedule: Schedule = linear_decay
    shuffle: Shuffle | None = None
    placement: str = "auto"
    overlap: bool = True
    evaluate_every: int = 1
    early_stopping: EarlyStopping | None = None
    keep: str | None = None
    loggers: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.update, Update):
            raise ProgramError(f"Program got {self.update!r} as its update; decorate the function with @gridml.update.")
        given: dict[str, Any] = {"graph": self.graph, "evaluate": self.evaluate, "schedule": self.schedule}
        for name, value in given.items():
            if not callable(value) and (name != "evaluate" or value is not None):
                raise ProgramError(f"Program got {value!r} as its {name}; expected the function, without calling it.")
        if type(self.epochs) is not int or self.epochs < 1:
            raise ProgramError(f"Program got epochs={self.epochs!r}; expected at least 1, as a whole number.")
        if self.epochs > MOST_EPOCHS:
            raise ProgramError(f"Program got epochs={self.epochs}; expected at most {MOST_EPOCHS:,}.")
        if self.shuffle not in (None, *typing.get_args(Shuffle)):
            raise ProgramError(f"Program got shuffle={self.shuffle!r}; expected one of {typing.get_args(Shuffle)}.")
        if not isinstance(self.placement, str):
            raise ProgramError(
                f"Program got placement={self.placement!r}; expected 'auto', 'none' or a method's name, as text."
            )
        if type(self.overlap) is not bool:
            raise ProgramError(
                f"Program got overlap={self.overlap!r}; expected True, or False for epochs that open in turn."
            )
        if type(self.evaluate_every) is not int or not 1 <= self.evaluate_every <= MOST_EPOCHS:
            raise ProgramError(
                f"Program got evaluate_every={self.evaluate_every!r}; expected a whole number of epochs, from 1 on."
            )
        if not isinstance(self.early_stopping, EarlyStopping | None):
            raise ProgramError(
                f'Program got early_stopping={self.early_stopping!r}; expected gridml.early_stopping("loss"), or None.'
            )
        for name in ("early_stopping", "keep"):
            if getattr(self, name) is not None and self.evaluate is None:
                raise ProgramError(f"Program got {name} without evaluate, whose metrics it goes by; give both.")
        _ = self.kept_goal
        if isinstance(self.loggers, str) or not all(isinstance(name, str) for name in self.loggers):
            raise ProgramError(
                f'Program got loggers={self.loggers!r}; expected a list of names, such as ["tensorboard"].'
            )

    @property
    def kept_goal(self) -> Goal | None:
        """What the replica that is kept as the best is the best of; None where none is kept."""
        return None if self.keep is None else kept_goal(self.keep)

    @property
    def goals(self) -> list[Goal]:
        """Every metric that the run goes by."""
        stopping = None if self.early_stopping is None else self.early_stopping.goal
        return [goal for goal in (stopping, self.kept_goal) if goal is not None]

    def types(self) -> dict[str, VertexType]:
        """Every vertex type that can be reached from the driving one, by name."""
        return reachable(self.update.driver)

    def build(self, source: Path) -> Graph:
        """Call `graph` and check what it made. `source` is the user's file, for the traceback.

        Raises UserCodeError when it fails, ProgramError when it makes something else or an edge leads nowhere.
        """
        try:
            made = self.graph()
        except (GridmlError, Interruption):
            raise
        except BaseException as error:  # a run that ends with the status of SystemExit would pass for a success
            where = ""
            if isinstance(error, FileNotFoundError) and not os.path.isabs(os.fsdecode(error.filename or "/")):
                where = f" That is looked for in the working directory, {Path.cwd()}; an absolute path fits everywhere."
            raise UserCodeError(
                f"graph failed: {described(error)}.{where} Nothing was started.", user_traceback(error, source)
            ) from error
        if not isinstance(made, Graph):
            raise ProgramError(f"graph returned {type(made).__name__}; expected the gridml.Graph it built.")
        made.check()
        self._check_evaluate(made)
        return made

    def driving(self, graph: Graph) -> str:
        """Return the name of the type whose vertices f runs on. Raises ProgramError where a graph has none of them."""
        driver = self.update.driver.__name__
        if driver not in graph.tables or not graph.tables[driver].count:
            raise ProgramError(f"the graph has no {driver} vertices; f has nothing to run on. Add them in graph().")
        return driver

    def _check_evaluate(self, graph: Graph) -> None:
        """Raise ProgramError where evaluate wants vertices that the graph does not have."""
        for argument, hint in argument_hints(self.evaluate, "evaluate").items() if self.evaluate is not None else ():
            if hint is Progress:
                continue
            cls, _ = vertex_class(hint, "evaluate", argument)
            if describe(cls).name not in graph.tables:
                raise ProgramError(
                    f"argument {argument} of evaluate is {cls.__name__}, of which the graph has no vertices. Add them "
                    f"in graph(), or leave the argument out."
                )

    def check(self) -> None:
        """Raise ProgramError for what would otherwise fail on a worker, or after the first epoch."""
        self.types()
        if not any(t.replicated or t.mutable for t in self.types().values()):
            driver = self.update.driver.__name__
            ends = [name for name in self.types() if name != driver]
            lacks = f"{' and '.join(ends)} {'have' if len(ends) > 1 else 'has'} no module and no aggregate"
            raise ProgramError(
                f"{self.update.function.__name__} can change nothing: no type it reaches is replicated"
                f"{f' ({lacks})' if ends else f' ({driver} has no edge)'}, and {driver} has no field that is mutable. "
                f"{f'Give {ends[0]} an aggregate, such as gridml.mean(), or declare' if ends else 'Declare'} a field "
                f"of {driver} as gridml.array(..., mutable=True)."
            )
        _ = self.update.parameters
        check_schedule(self.schedule)
        if isinstance(self.schedule, TorchSchedule):
            self.schedule.try_on([m.optimiser for t in self.types().values() for m in t.modules.values()])
        if self.evaluate is not None:
            name = self.evaluate.__name__ if inspect.isfunction(self.evaluate) else "evaluate"
            hints = argument_hints(self.evaluate, name)
            progress_place(hints, name)
            for argument, hint in hints.items():
                if hint is not Progress:
                    vertex_class(hint, name, argument)

    def factor(self, at: Progress) -> float:
        """The learning-rate factor when the run is there."""
        return factor_of(self.schedule, at)

    @cached_property
    def least_batch(self) -> int:
        """The smallest batch that a worker which is one of many may use: no other than the program's own where f moves
        vertices by a rate of its own, which nobody else can scale along, or where a layer takes statistics of its
        batch, which explode where a small one has no variance."""
        modules = [m for t in self.types().values() for m in t.modules.values()]
        shared = any(m.optimiser is not None for m in modules) and not self._normalises
        return self.update.min_batch if shared else self.update.batch or 1

    @cached_property
    def fewest(self) -> int:
        """The fewest vertices of any batch, at a chunk's end, too: what is asked for, and two where a layer takes
        statistics of its batch."""
        two = min(2, self.update.batch or 1)
        return max(self.update.min_batch, two) if self._normalises else self.update.min_batch

    @cached_property
    def _normalises(self) -> bool:
        return any(layers_of(m).by_batch for t in self.types().values() for m in t.modules.values())

    @cached_property
    def uses_torch(self) -> bool:
        return any(t.modules for t in self.types().values())

    @cached_property
    def bsp(self) -> bool:
        """Whether nothing is replicated, so that the program runs in supersteps on a uniform partition."""
        return not any(t.replicated for t in self.types().values())
