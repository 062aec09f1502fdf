"""Programs: the graph, the update function f, the evaluation of the result, and the goals of a run.

A goal is a metric of evaluate and the direction in which it improves: "loss", "min:loss" or "max:accuracy". Without min
or max, known words in the metric's name decide. `user_traceback` cuts the traceback of an error to the user's own code.
"""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from gridml.aggregates import Aggregate, ByName
from gridml.aggregates.averages import StaleMean
from gridml.errors import GridmlError, Interruption, ProgramError, UserCodeError
from gridml.model.graph import Graph
from gridml.model.layers import layers_of
from gridml.model.order import Shuffle
from gridml.model.phases import Stages
from gridml.model.samples import samples_of
from gridml.model.schedule import Progress, Schedule, TorchSchedule, check_schedule, factor_of, linear_decay
from gridml.model.stages import ApplyStage, GlobalSync, MiniBatch
from gridml.model.ticks import Consistency, Ticks
from gridml.model.update import Shape, Update, argument_hints, progress_place, vertex_class
from gridml.model.vertex import Vertex, VertexType, describe, module, reachable
from gridml.protocol.foreign import MAX_TRACEBACK_CHARS, described, printable

Mode = Literal["min", "max"]
# Words of metric names that imply a direction. A name with words of both kinds, or of none, is ambiguous.
LESS = frozenset({"loss", "losses", "error", "errors", "perplexity", "mse", "rmse", "mae", "nll", "wer", "cer"})
MORE = frozenset(
    {"accuracy", "acc", "auc", "f1", "precision", "recall", "r2", "bleu", "iou", "dice", "score", "reward"}
)
MAX_PATIENCE = 10**6


@dataclass(frozen=True)
class Goal:
    """A metric of evaluate, and the direction in which it improves."""

    metric: str
    mode: Mode

    def better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Return True if `value` is better than `than` by more than `by`. NaN and infinity are never better. A finite
        value is better than NaN and infinity, such as the NaN before the first evaluation."""
        if not (math.isfinite(than) and math.isfinite(value)):
            return math.isfinite(value)
        return value < than - by if self.mode == "min" else value > than + by

    def find(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the metric's value; None if there is no number of that name."""
        value = metrics.get(self.metric)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def value(self, metrics: Mapping[str, Any]) -> float:
        """Return the metric's value. Raises ProgramError if evaluate returned no number of that name."""
        value = self.find(metrics)
        if value is None:
            returned = metrics.get(self.metric)
            named = f"{returned} by that name" if isinstance(returned, bool) else "a list of that name"
            got = named if self.metric in metrics else ", ".join(sorted(metrics)) or "nothing"
            raise ProgramError(
                f"the program has the goal {self}, and evaluate returned {got}; expected a number called "
                f"{self.metric!r}."
            )
        return value

    def __str__(self) -> str:
        return f"{self.mode}:{self.metric}"


@dataclass(frozen=True)
class EarlyStopping:
    """The rule that `early_stopping` returns: it ends a run early."""

    goal: Goal
    patience: int  #: number of evaluations in a row without an improvement after which the run can end
    min_delta: float  #: an improvement must exceed this


def early_stopping(metric: str, patience: int = 3, min_delta: float = 0.0, mode: Mode | None = None) -> EarlyStopping:
    """Return a rule that ends a run early: `gridml.Program(..., early_stopping=gridml.early_stopping("loss"))`.

    `metric` is one of evaluate's, such as "loss" or "max:accuracy"; `mode` ("min" or "max") can give the direction
    instead. The run ends when both of these conditions hold. First, none of the last `patience` evaluations is better
    than the best before them by more than `min_delta`. Second, the least-squares line through the last 2 * patience + 1
    evaluations does not improve by more than `min_delta` from its first to its last point, so that noise on an
    improving metric does not end the run. NaN and infinite values are no improvement and are left out of the line; if
    the last `patience` values are all NaN or infinite, only the first condition counts.

    No epoch has to be abandoned, because an epoch is started only if the rule cannot end the run while that epoch is
    trained. With `patience=1` every epoch waits for the evaluation of the previous epoch.

    Raises ProgramError for a patience below 1, a negative min_delta, or a metric with no known direction.
    """
    if mode is not None and mode not in get_args(Mode):
        raise ProgramError(f"early_stopping got mode={mode!r}; expected 'min' or 'max'.")
    named = goal(metric if mode is None else f"{mode}:{metric}", "early_stopping")
    if type(patience) is not int or not 1 <= patience <= MAX_PATIENCE:
        raise ProgramError(f"early_stopping got patience={patience!r}; expected a whole number from 1 on.")
    if type(min_delta) not in (int, float) or not (math.isfinite(min_delta) and min_delta >= 0):
        raise ProgramError(f"early_stopping got min_delta={min_delta!r}; expected a finite number from 0 on.")
    return EarlyStopping(named, patience, float(min_delta))


def saved_goal(keep: str) -> Goal:
    """Parse the `keep` of `gridml.Program(..., keep="best:loss")`. Raises ProgramError."""
    what, _, metric = keep.partition(":") if isinstance(keep, str) else ("", "", "")
    if what != "best" or not metric:
        raise ProgramError(f'Program got keep={keep!r}; expected "best:" and a metric, such as "best:loss".')
    return goal(metric, "keep")


def goal(text: str, who: str) -> Goal:
    """Parse a goal. Raises ProgramError for any other text; `who` names the caller in the message."""
    if not isinstance(text, str) or not text:
        raise ProgramError(f'{who} got {text!r}; expected the name of a metric, such as "loss" or "max:accuracy".')
    mode, _, metric = text.partition(":")
    if mode in get_args(Mode) and metric:
        return Goal(metric, "min" if mode == "min" else "max")
    words = set(re.split(r"[^a-z0-9]+", text.lower()))
    less, more = bool(words & LESS), bool(words & MORE)
    if less == more:
        raise ProgramError(
            f"{who} got {text!r}, which does not say whether less or more is better; expected min:{text} or max:{text}."
        )
    return Goal(text, "min" if less else "max")


_GRIDML = Path(__file__).parents[1]  # the folder of the package


def user_traceback(error: BaseException, path: Path) -> str:
    """Return the traceback of an error, from the first frame in the user's file on, shortened and without control
    characters. Frames of gridml are left out. After the frames, a GridmlError is shown by its message alone."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, f in enumerate(frames) if Path(f.filename).resolve() == path.resolve()]
    shown = [f for f in frames[own[0] :] if not _is_ours(f.filename)] if own else []
    return _formatted(shown, [str(error)] if isinstance(error, GridmlError) else traceback.format_exception_only(error))


def called_traceback(error: BaseException) -> str:
    """Return the traceback of an error below the frame that caught it, shortened and without control characters."""
    return _formatted(traceback.extract_tb(error.__traceback__)[1:], traceback.format_exception_only(error))


def _formatted(frames: Sequence[traceback.FrameSummary], words: Sequence[str]) -> str:
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return printable("".join([*lines, *words]).rstrip(), MAX_TRACEBACK_CHARS)


def _is_ours(file: str) -> bool:
    return file == "<string>" or Path(file).is_relative_to(_GRIDML)  # "<string>": methods that dataclasses generate


Metrics = dict[str, Any]

MAX_EPOCHS = 10**9
_MODULE = "a line such as model = gridml.module(factory, partial(torch.optim.SGD, lr=0.05))"
_STOPPING, _LOGGERS = 'gridml.early_stopping("loss")', 'a list of names, such as ["tensorboard"]'


@dataclass(frozen=True)
class Program:
    """A training program. `graph` and `evaluate` run on the submit host only, `update` on the workers.

    `update` is f, or a list: f or a `MiniBatch`, and then what the master does after each pass: functions under
    `global_sync`, and stages under `apply` over all vertices of a replicated type. Then passes do not overlap.

    `evaluate` takes the vertex types that its annotations name, or a `gridml.sample` of them, and returns numbers (or
    lists of numbers) by name.
    `schedule` gives the learning-rate factor for the credited share of the run (0 to 1), or for a `gridml.Progress`:
    see `by_step`, `warmup` and `torch_schedule`. f and `evaluate` can also take a `gridml.Progress`. `shuffle` defaults
    to "all" if every replicated vertex is a module (then placement has no effect), otherwise to "block". `placement`
    groups vertices that touch the same replicated rows on one worker: "auto" does so if it pays off, "none" never, and
    a method of `gridml place` always.

    By default the last vertices of an epoch and the first vertices of the next are trained concurrently, so that no
    worker waits. With `overlap=False` an epoch starts only when every vertex of the previous epoch is credited and
    merged: f and g read complete sums of earlier epochs, and idle workers wait for the others at the end of each epoch.

    `evaluate` is called every `evaluate_every` epochs and after the last epoch. `early_stopping` can end the run before
    `epochs` are trained. `keep="best:loss"` saves the replica with the best value of a metric, in best.safetensors.
    `loggers` are names such as "tensorboard". These loggers get the metrics that metrics.csv and metrics.jsonl get.
    """

    graph: Callable[[], Graph]
    update: Update | Sequence[Update | MiniBatch | GlobalSync | ApplyStage]
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
        first, *after = self._work
        if not isinstance(first, Update | MiniBatch):
            raise ProgramError(
                f"Program got {type(first).__name__} as its update; expected gridml.Program(graph, train), with "
                f"@gridml.update(batch=64) above train, the one function that workers call, or a list that begins with "
                f"a gridml.MiniBatch."
            )
        for each in after:
            if not (isinstance(each, GlobalSync) or (isinstance(each, ApplyStage) and each.at == "owner")):
                named = getattr(each, "name", type(each).__name__)
                raise ProgramError(
                    f"Program got {named} behind the first of its list; expected gridml.Program(graph, train), with "
                    f"@gridml.update(batch=64) above train, the one function that workers call. In a list a MiniBatch, "
                    f"or that function, is followed by functions under @gridml.global_sync, and by @gridml.apply of "
                    f"replicated types, only."
                )
        given: dict[str, Any] = {"graph": self.graph, "evaluate": self.evaluate, "schedule": self.schedule}
        for name, value in given.items():
            if not callable(value) and (name != "evaluate" or value is not None):
                scheduler = ", such as gridml.torch_schedule(lambda optimiser: StepLR(optimiser, 30))"
                raise ProgramError(
                    f"Program got {value!r} as its {name}; expected the function, without calling it"
                    f"{scheduler * (name == 'schedule')}."
                )
        every, names = self.evaluate_every, self.loggers
        expectations = (
            ("epochs", type(self.epochs) is int and self.epochs >= 1, "at least 1, as a whole number"),
            ("epochs", type(self.epochs) is not int or self.epochs <= MAX_EPOCHS, f"at most {MAX_EPOCHS:,}"),
            ("shuffle", self.shuffle in (None, *get_args(Shuffle)), f"one of {get_args(Shuffle)}"),
            ("placement", isinstance(self.placement, str), "'auto', 'none' or a method's name, as text"),
            ("overlap", type(self.overlap) is bool, "True, or False for epochs that open in turn"),
            ("evaluate_every", type(every) is int and 1 <= every <= MAX_EPOCHS, "a whole number of epochs, from 1 on"),
            ("early_stopping", isinstance(self.early_stopping, EarlyStopping | None), f"{_STOPPING}, or None"),
            ("loggers", not isinstance(names, str) and all(isinstance(n, str) for n in names), _LOGGERS),
        )
        for name, holds, expected in expectations:
            if not holds:
                raise ProgramError(f"Program got {name}={getattr(self, name)!r}; expected {expected}.")
        for name in ("early_stopping", "keep"):
            if getattr(self, name) is not None and self.evaluate is None:
                raise ProgramError(f"Program got {name} without evaluate, whose metrics it needs; give both.")
        _ = self.saved_goal  # raises for an invalid `keep`

    @property
    def saved_goal(self) -> Goal | None:
        """The goal by which the best replica is saved; None if none is saved."""
        return None if self.keep is None else saved_goal(self.keep)

    @property
    def goals(self) -> list[Goal]:
        """The goals that the run depends on."""
        stopping = None if self.early_stopping is None else self.early_stopping.goal
        return [goal for goal in (stopping, self.saved_goal) if goal is not None]

    @property
    def _work(self) -> Sequence[Any]:
        """The work of the program, in order: f or a MiniBatch for workers, then functions for the master."""
        return self.update if isinstance(self.update, Sequence) and self.update else [self.update]

    @cached_property
    def shape(self) -> Shape:
        """f, or the stages that take its place."""
        first: Update | MiniBatch = self._work[0]
        return first if isinstance(first, Update) else first.update or Stages(first)

    @property
    def after(self) -> list[ApplyStage | GlobalSync]:
        """The work of the master after each pass, in order."""
        return list(self._work[1:])

    @property
    def syncs(self) -> list[GlobalSync]:
        """The functions that the master calls after each pass, in order."""
        return [each for each in self.after if isinstance(each, GlobalSync)]

    @property
    def all_syncs(self) -> list[GlobalSync]:
        """The functions that the master calls after each mini-batch or pass, in order. Each can end the run."""
        return [*(self.shape.mini_batch.syncs if isinstance(self.shape, Stages) else ()), *self.syncs]

    def not_ended(self, passes: int) -> str | None:
        """Say that a run did all its `passes` though functions could have ended it; None if there are none."""
        names = " and ".join(sync.name for sync in self.all_syncs if sync.may_end)
        return f"all of its passes were done ({passes:,}), and {names} never returned True" if names else None

    @cached_property
    def ends_passes(self) -> bool:
        """True if the end of a pass changes contexts, so that no pass may begin before it."""
        return bool(self.after) or any(of.accumulators for of in self.types().values())

    @cached_property
    def consistency(self) -> Consistency:
        """How stale the values may be that f or the stages read."""
        replicates = any(of.replicated for of in self.types().values())
        is_sequential = self.ends_passes or not self.overlap
        if not isinstance(self.shape, Stages):
            return Consistency.of(replicates=replicates, is_sequential=is_sequential)
        batch = self.shape.mini_batch
        return Consistency.of(
            replicates=replicates,
            slack=batch.lag,
            at_owner=bool(batch.at_owner),
            is_sequential=is_sequential,
            is_linked=self.shape.is_linked,
        )

    def division(self, graph: Graph) -> Ticks | None:
        """Return how a pass is divided into mini-batches; None if workers cut them from their chunks. Raises
        ProgramError as `driving` does."""
        if not isinstance(self.shape, Stages):
            return None
        batch, table = self.shape.mini_batch, graph.tables[self.driving(graph)]
        if batch.edges is not None:
            parts = batch.parts if self.consistency.waits else 1
            return Ticks.by_edges(self.shape.edges_of(table), parts, batch.edges, len(batch.phases))
        if not self.consistency.waits:
            return None
        if (drawn := self.shape.drawn) is not None:
            rows = graph.tables[drawn.__name__].count
            blocks = 1 if batch.size is None else -(-rows // batch.size)
            return Ticks.of(table.count, batch.parts, None, len(batch.phases), max(1, blocks))
        return Ticks.of(table.count, batch.parts, batch.size, len(batch.phases))

    def positions(self, graph: Graph) -> int:
        """Return the positions of a pass: the vertices that f runs on, each as often as a mini-batch has phases."""
        division = self.division(graph) if self.consistency.waits else None
        return graph.tables[self.driving(graph)].count if division is None else division.positions

    def types(self) -> dict[str, VertexType]:
        """Return the type that f is called for and every type that it reaches, by name: along edges, or as contexts of
        stages."""
        return self.shape.types if isinstance(self.shape, Stages) else reachable(self.shape.driver)

    def build(self, source: Path) -> Graph:
        """Call `graph` and check the result. `source` is the user's file, for the traceback.

        Raises UserCodeError if it fails, ProgramError if it returns no graph or an edge has no target.
        """
        try:
            made = self.graph()
        except (GridmlError, Interruption):
            raise
        except BaseException as error:  # SystemExit too, because a failed run that exits with 0 would look successful
            where = f" The working directory is {Path.cwd()}." if isinstance(error, FileNotFoundError) else ""
            raise UserCodeError(
                f"graph failed: {described(error)}.{where} Nothing was started.", user_traceback(error, source)
            ) from error
        if not isinstance(made, Graph):
            raise ProgramError(
                f"graph returned {type(made).__name__}; expected the gridml.Graph it built: end it with  return g."
            )
        made.check()
        self._connect(made)
        for argument, cls in self._evaluated().items():
            if describe(cls).name not in made.tables:
                raise ProgramError(
                    f"argument {argument} of evaluate is {cls.__name__}, but the graph has no such vertices. Add them "
                    f"in graph(), or leave the argument out."
                )
        return made

    def _connect(self, graph: Graph) -> None:
        """Make the edges along which stages reach their contexts, and measure mini-batches. Raises ProgramError for a
        context that is not one vertex."""
        of_stages = self.shape.contexts if isinstance(self.shape, Stages) else []
        for of in {of.name: of for of in (*of_stages, *(sync.context for sync in self.all_syncs))}.values():
            count = graph.tables[of.name].count if of.name in graph.tables else 0
            if count != 1:
                raise ProgramError(
                    f"the graph has {count:,} {of.name} vertices, and a stage takes {of.name} as its context; expected "
                    f"one, added with g.add({of.name}, ...), or an edge that leads to those that are meant."
                )
        if isinstance(self.shape, Stages) and (driver := self.shape.driver.__name__) in graph.tables:
            for of in of_stages:
                graph.reach(driver, of)
            walked, edges = {each.walked for each in self.shape.exchanges}, graph.tables[driver].edges
            for name in {each.edge for each in self.shape.exchanges if each.is_turned}:
                graph.turn(driver, name)
                edges[name] = replace(edges[name], stays=name not in walked)
            self.shape.measure(graph.tables[driver])

    def driving(self, graph: Graph) -> str:
        """Return the name of the type that f runs on. Raises ProgramError if the graph has no such vertices, or none of
        a replicated type that these reach."""
        driver = self.shape.driver.__name__
        if driver not in graph.tables or not graph.tables[driver].count:
            raise ProgramError(f"the graph has no {driver} vertices; f has nothing to run on. Add them in graph().")
        for of in self.types().values():
            if of.replicated and not of.modules and of.name in graph.tables and not graph.tables[of.name].count:
                raise ProgramError(
                    f"the graph has no {of.name} vertices, and {driver} needs some: an empty vocabulary, or none left "
                    f"by a filter? Check what graph() adds as {of.name}."
                )
        return driver

    def _evaluated(self) -> dict[str, type[Vertex]]:
        """Return the vertex types that evaluate takes, by argument. Raises ProgramError for any other annotation."""
        if self.evaluate is None:
            return {}
        name = self.evaluate.__name__ if inspect.isfunction(self.evaluate) else "evaluate"
        hints = argument_hints(self.evaluate, name)
        progress_place(hints, name)
        for each in samples_of(self.evaluate):
            if hints[each] is Progress or not (named := vertex_class(hints[each], name, each))[1]:
                raise ProgramError(
                    f"argument {each} of {name} is a sample of {hints[each].__name__}; expected one of a gridml.Batch, "
                    f"as in Annotated[gridml.Batch[Page], gridml.sample(10_000)]."
                )
            if describe(named[0]).modules:
                raise ProgramError(
                    f"argument {each} of {name} is a sample of {named[0].__name__}, which has modules; expected a type "
                    f"of arrays alone. Take gridml.Batch[{named[0].__name__}], and choose in {name}."
                )
        return {each: vertex_class(hint, name, each)[0] for each, hint in hints.items() if hint is not Progress}

    def check(self) -> None:
        """Raise ProgramError for errors that would otherwise show on a worker, or after the first epoch."""
        self.types()
        if isinstance(self.shape, Stages):
            self.shape.check()
        if not any(t.replicated or t.mutable for t in self.types().values()):
            driver = self.shape.driver.__name__
            ends = [name for name in self.types() if name != driver]
            lacks = f"{' and '.join(ends)} {'have' if len(ends) > 1 else 'has'} no module and no aggregate"
            raise ProgramError(
                f"{self.shape.function.__name__} can change nothing: no type it reaches is replicated"
                f"{f' ({lacks})' if ends else f' ({driver} has no edge)'}, and {driver} has no field that is mutable. "
                f"{f'Give the class {ends[0]} {_MODULE}, or an aggregate, or declare' if ends else 'Declare'} a field "
                f"of {driver} as gridml.array(..., mutable=True)."
            )
        if isinstance(self.shape, Update):
            own = [f"{of.name}.{name}" for of in self.types().values() if not of.replicated for name in of.workspace]
            if own:
                raise ProgramError(
                    f"{own[0]} is an accumulator, which only stages fill and read, and {self.shape.name} is an f; "
                    f"declare it as gridml.array(..., mutable=True)."
                )
            _ = self.shape.parameters  # raises if an argument of f cannot be bound to an edge
        for each in self.after:
            if isinstance(each, ApplyStage) and not (isinstance(self.shape, Stages) and each.is_by_master):
                raise ProgramError(
                    f"{each.name} is applied to {each.over.__name__} after a pass; expected a replicated type, in a "
                    f"program of stages."
                )
        for sync in self.all_syncs:
            if sync.context.name not in self.types():
                raise ProgramError(
                    f"{sync.name} takes {sync.context.name}, which nothing that workers run takes; expected one of "
                    f"{', '.join(self.types())}."
                )
        check_schedule(self.schedule)
        # A scheduler is made once here, because an error in making it on workers would end every job of the run.
        if isinstance(self.schedule, TorchSchedule):
            self.schedule.try_on([m.optimiser for m in self.modules])
        self._evaluated()

    def factor(self, at: Progress) -> float:
        """Return the learning-rate factor at this progress."""
        return factor_of(self.schedule, at)

    @cached_property
    def min_target_batch(self) -> int:
        """The smallest batch that a worker aims at when many workers share the program's batch.

        It is the program's own batch if f uses a rate of its own, which gridml cannot scale with the batch. It is also
        the program's own batch if a layer normalises by its batch, because a small batch can lack variance, and then
        the layer's statistics explode.
        """
        shared = self.shape.shares_batch or (any(m.optimiser is not None for m in self.modules) and not self.normalises)
        return self.shape.min_batch if shared else self.shape.batch or 1

    def adds_steps(self, graph: Graph) -> bool:
        """Return whether workers may share each batch, and the master may add their steps.

        The step of a part of a batch must be that of its optimisers alone, at a rate that gridml scales with the part,
        and every worker must train all weights: the rate of a part counts on the steps of all others.
        """
        update, tables = self.shape, graph.replicated
        if self.normalises or update.keeps_rate or update.accumulate > 1 or (update.batch or 1) == 1:
            return False
        if not any(m.optimiser is not None for m in self.modules):
            return False
        if any(rule.near and not (rule.gathers or rule == StaleMean()) for rule in self._declared_rules):
            return False
        return all(t.count == 1 and not t.type.arrays and not t.type.has_own_rule for t in tables)

    @property
    def gathers(self) -> bool:
        """True if pushes that are not added are gathered in rounds (`Aggregate.gathers`)."""
        return any(rule.gathers for rule in self._declared_rules)

    @property
    def _declared_rules(self) -> list[Aggregate]:
        """The merge rules that the program names."""
        declared = [each.rule for each in self.types().values() if each.rule is not None]
        chosen = [each.patterns if isinstance(each, ByName) else [("*", each)] for each in declared]
        return [rule for patterns in chosen for _, rule in patterns]

    @cached_property
    def min_actual_batch(self) -> int:
        """The smallest size of any batch, even at the end of a chunk: `min_batch`, but at least two if a layer
        normalises by its batch."""
        two = min(2, self.shape.batch or 1)
        return max(self.shape.min_batch, two) if self.normalises else self.shape.min_batch

    @property
    def modules(self) -> list[module]:
        """The modules that the program's types declare."""
        return [declared for each in self.types().values() for declared in each.modules.values()]

    @cached_property
    def normalises(self) -> bool:
        """True if a layer normalises by its batch."""
        return any(layers_of(declared).by_batch for declared in self.modules)

    @cached_property
    def rates(self) -> tuple[float, ...] | None:
        """The distinct learning rates of the optimisers: () without optimisers, None if the rates cannot be determined.
        Reading this property makes all modules and optimisers once."""
        rates: tuple[float, ...] | None = ()
        for each in (layers_of(declared) for declared in self.modules if declared.optimiser is not None):
            rates = None if rates is None or each.rates is None else tuple(dict.fromkeys((*rates, *each.rates)))
        return rates

    @property
    def has_settings(self) -> bool:
        """True if there is a batch of several vertices to share, or a learning rate."""
        return (self.shape.batch or 1) > 1 or self.rates != ()

    @cached_property
    def uses_torch(self) -> bool:
        return bool(self.modules)
