"""A program: the graph, f, and how the result is evaluated; and how one is loaded from the user's file."""

from __future__ import annotations

import importlib.util
import inspect
import stat
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gridml.errors import (
    DataError,
    GridmlError,
    Interruption,
    ProgramError,
    UnguardedError,
    UsageError,
    UserCodeError,
)
from gridml.model.batch import Batch
from gridml.model.batch_norm import batch_norms
from gridml.model.goals import EarlyStopping, Goal, kept_goal
from gridml.model.graph import Graph
from gridml.model.order import Shuffle
from gridml.model.own_modules import Kept, compiled, folder_of
from gridml.model.progress import Progress, StepCount
from gridml.model.schedule import Schedule, TorchSchedule, check_schedule, factor_of, linear_decay
from gridml.model.vertex import Vertex, VertexType, check_plain, describe, module, reachable
from gridml.protocol.text import TRACEBACK, described, printable

Metrics = dict[str, Any]

MOST_BATCH = 10**9
_GRIDML = Path(__file__).parents[1]  # its folder
MOST_EPOCHS = 10**9
MOST_NAME = 200  # bytes of a program's file name: others are made of it, and a file system's limit is 255


@dataclass(frozen=True)
class Parameter:
    """One argument of f after the first: the replicas or neighbours along `edge`, one vertex or a batch of them."""

    edge: str
    type: VertexType
    single: bool


class Update:
    """f with its batch size. `batch` None means that f takes one vertex at a time."""

    def __init__(
        self,
        function: Callable[..., None],
        batch: int | None,
        min_batch: int,
        *,
        drop_last: bool = False,
        accumulate: int = 1,
    ) -> None:
        self.function = function
        self.batch = batch
        self.min_batch = min_batch
        self.drop_last = drop_last
        self.accumulate = accumulate
        self._progress_at: int | None = None  # where among its arguments f takes a Progress

    def __call__(self, *args: Any) -> None:
        self.function(*args)

    def call(self, at: Progress, *vertices: Any) -> None:
        """Call f with its vertices, and with how far the run is where it asks for that."""
        place = self._progress_at
        self.function(*(vertices if place is None else (*vertices[:place], at, *vertices[place:])))

    @property
    def window(self) -> int:
        """The vertices of one optimiser step, as one worker alone takes them."""
        return (self.batch or 1) * self.accumulate

    def steps(self, vertices: int) -> StepCount:
        """Return how epochs of so many vertices are divided into optimiser steps."""
        trained = vertices - vertices % (self.batch or 1) if self.drop_last else vertices
        return StepCount(vertices, max(1, trained), self.window)

    @property
    def driver(self) -> type[Vertex]:
        """The local type that f is called for."""
        return self._signature[0]

    @property
    def parameters(self) -> list[Parameter]:
        return self._signature[1]

    @cached_property
    def _signature(self) -> tuple[type[Vertex], list[Parameter]]:
        name = getattr(self.function, "__name__", "update")
        hints = _hints(self.function, name)
        check_plain(self.function, name)
        self._progress_at = _progress_place(hints, name)
        arguments = [argument for argument, hint in hints.items() if hint is not Progress]
        if not arguments or self._progress_at == 0:
            taken = "a gridml.Progress first" if hints else "no argument"
            raise ProgramError(f"{name} takes {taken}; its first is the vertex, or Batch of vertices, it runs on.")
        driver, batched = _vertex_class(hints[arguments[0]], name, arguments[0])
        if batched != (self.batch is not None):
            raise ProgramError(
                f"{name} takes {'a Batch' if batched else 'one vertex'}, so it is declared "
                f"{'@gridml.update(batch=64)' if batched else '@gridml.update'}."
            )
        vertex_type = describe(driver)
        if vertex_type.replicated:
            raise ProgramError(
                f"the first argument of {name} is {vertex_type.name}, which is replicated; f runs on local vertices."
            )
        return driver, [_bind(vertex_type, argument, hints[argument], name) for argument in arguments[1:]]


def _progress_place(hints: dict[str, Any], name: str) -> int | None:
    """Return which of its arguments a function wants to be told with how far the run is, None for no one."""
    places = [place for place, hint in enumerate(hints.values()) if hint is Progress]
    if len(places) > 1:
        raise ProgramError(f"{name} takes {len(places)} arguments of gridml.Progress; expected one at most.")
    return places[0] if places else None


def _normalises_by_batch(declared: module) -> bool:
    """Whether a layer of a module is a BatchNorm. One is made to look, and the random numbers are put back; that it
    cannot be made is said where it is needed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        try:
            return any(True for _ in batch_norms(declared.factory()))
        except Interruption:
            raise
        except BaseException:
            return False


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the annotation of every argument, in order. Raises ProgramError where one is missing or cannot be read."""
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:  # evaluating the text of an annotation can raise anything
        raise ProgramError(f"the annotations of {name} cannot be read: {error}. Correct them.") from error
    arguments = list(inspect.signature(function).parameters)
    bare = [argument for argument in arguments if argument not in hints]
    if bare:
        raise ProgramError(
            f"argument {bare[0]} of {name} has no annotation; every argument needs a vertex type, or gridml.Batch of "
            f"one, as in (images: gridml.Batch[Image], network: Network)."
        )
    return {argument: hints[argument] for argument in arguments}


def _vertex_class(hint: Any, function: str, argument: str) -> tuple[type[Vertex], bool]:
    batched = typing.get_origin(hint) is Batch
    cls = typing.get_args(hint)[0] if batched else hint
    if not (isinstance(cls, type) and issubclass(cls, Vertex)):
        raise ProgramError(
            f"argument {argument} of {function} is annotated {hint}; expected a vertex type or gridml.Batch of one."
        )
    return cls, batched


def _bind(driver: VertexType, argument: str, hint: Any, function: str) -> Parameter:
    cls, batched = _vertex_class(hint, function, argument)
    leading = [name for name in driver.edges if driver.target(name) is cls]
    edge = argument if argument in leading else leading[0] if len(leading) == 1 else None
    if edge is None:
        what = f"several edges to that type; call the argument as one of them, {', '.join(leading)}."
        if not leading:
            what = f"no edge to that type; declare one, {argument} = gridml.edge({cls.__name__})."
        raise ProgramError(f"argument {argument} of {function} is a {cls.__name__}, but {driver.name} has {what}")
    vertex_type = describe(cls)
    if batched and vertex_type.modules:
        raise ProgramError(
            f"argument {argument} of {function} is a Batch of {vertex_type.name}, which holds modules; modules come "
            f"one at a time: annotate it {vertex_type.name}."
        )
    return Parameter(edge, vertex_type, not batched)


@typing.overload
def update(function: Callable[..., None], /) -> Update: ...
@typing.overload
def update(
    *, batch: int, min_batch: int = 1, drop_last: bool = False, accumulate: int = 1
) -> Callable[[Callable[..., None]], Update]: ...
def update(
    function: Callable[..., None] | None = None,
    /,
    *,
    batch: int | None = None,
    min_batch: int = 1,
    drop_last: bool = False,
    accumulate: int = 1,
) -> Update | Callable[[Callable[..., None]], Update]:
    """Declare f. `@gridml.update` takes one vertex at a time; `@gridml.update(batch=64, min_batch=8)` takes up to 64.

    Several workers share a batch, down to a quarter of it but never below `min_batch`, and the learning rates of the
    program's optimisers fall with its root. A program without an optimiser, or with BatchNorm, keeps its batch. Where
    small batches leave a machine idle, as on a GPU, say `min_batch=64`.

    No batch has fewer than `min_batch` vertices, at the end of a chunk or an epoch either: the last ones share what is
    left. With a `min_batch` above half of `batch` that makes some larger than `batch`, by less than `min_batch`. With a
    BatchNorm none has a single vertex. Exceptions are an epoch that has not so many vertices, and connected ones.

    `drop_last`: as torch's DataLoader does, f gets nothing of an epoch's last batch if that is incomplete. Its vertices
    are credited without being trained; with shuffling they are others in each epoch.

    `accumulate`: an optimiser step of `network.step` follows the mean gradient of so many batches. Chunks then have
    whole steps, and pushes leave between two; what an epoch's end, an eviction or a cut chunk leaves over is stepped
    by itself.

    Raises ProgramError for sizes that make no sense.
    """
    if function is not None:
        return Update(function, None, 1)
    if type(batch) is not int or type(min_batch) is not int or not 1 <= min_batch <= batch <= MOST_BATCH:
        raise ProgramError(
            f"update got batch={batch!r}, min_batch={min_batch!r}; expected 1 <= min_batch <= batch "
            f"<= {MOST_BATCH:,}, whole numbers."
        )
    if type(accumulate) is not int or not 1 <= accumulate <= MOST_BATCH // batch:
        raise ProgramError(
            f"update got accumulate={accumulate!r}; expected a whole number of batches from 1, and at most "
            f"{MOST_BATCH:,} vertices in all."
        )
    return lambda f: Update(f, batch, min_batch, drop_last=drop_last, accumulate=accumulate)


@dataclass(frozen=True)
class Program:
    """What to train. `graph` and `evaluate` run on the submit host only, `update` on the workers.

    `evaluate` takes the vertices its annotations name and returns numbers (or lists of numbers) by name. `schedule`
    gives the learning-rate factor for the credited share of the run (0 to 1), or for a `gridml.Progress`: see
    `by_step`, `warmup` and `torch_schedule`. f and `evaluate` may take a `gridml.Progress`, too. `shuffle` defaults to
    "all" when every replicated vertex is a module (placement is degenerate), to "block" otherwise. `placement` puts
    vertices that touch the same replicated rows together, for one worker: "auto" where that pays, "none", or by a
    method of `gridml place`.

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
            raise UserCodeError(
                f"graph failed: {described(error)}. Nothing was started.", user_traceback(error, source)
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
        for argument, hint in _hints(self.evaluate, "evaluate").items() if self.evaluate is not None else ():
            if hint is Progress:
                continue
            cls, _ = _vertex_class(hint, "evaluate", argument)
            if describe(cls).name not in graph.tables:
                raise ProgramError(
                    f"argument {argument} of evaluate is {cls.__name__}, of which the graph has no vertices. Add them "
                    f"in graph(), or leave the argument out."
                )

    def check(self) -> None:
        """Raise ProgramError for what would otherwise fail on a worker, or after the first epoch."""
        self.types()
        if not any(t.replicated or t.mutable for t in self.types().values()):
            raise ProgramError(
                f"{self.update.function.__name__} can change nothing: no type it reaches is replicated (has a module "
                f"or an aggregate), and no local one has a field declared gridml.array(..., mutable=True)."
            )
        _ = self.update.parameters
        check_schedule(self.schedule)
        if isinstance(self.schedule, TorchSchedule):
            self.schedule.try_on([m.optimiser for t in self.types().values() for m in t.modules.values()])
        if self.evaluate is not None:
            name = self.evaluate.__name__ if inspect.isfunction(self.evaluate) else "evaluate"
            hints = _hints(self.evaluate, name)
            _progress_place(hints, name)
            for argument, hint in hints.items():
                if hint is not Progress:
                    _vertex_class(hint, name, argument)

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
        return any(_normalises_by_batch(m) for t in self.types().values() for m in t.modules.values())

    @cached_property
    def uses_torch(self) -> bool:
        return any(t.modules for t in self.types().values())

    @cached_property
    def bsp(self) -> bool:
        """Whether nothing is replicated, so that the program runs in supersteps on a uniform partition."""
        return not any(t.replicated for t in self.types().values())


_loading: list[Path] = []  # the programs whose files are executed now


def check_guarded(call: str) -> None:
    """Raise UnguardedError where a program's file, as it is loaded, makes a `call` that would begin a run."""
    if _loading:
        raise UnguardedError(
            f"{_loading[-1]} calls {call} while it is loaded: the master and every worker load this file, and each "
            f'would begin a run of its own. Put the call under  if __name__ == "__main__":  in that file.'
        )


def load(path: Path, original: Path | None = None) -> Program:
    """Return the one Program in a user's file. A copy that a run keeps, with the modules beside it, is loaded as the
    `original` that it was made of.

    Raises UsageError when the file is not there, ProgramError when it cannot be run or holds no Program, or two.
    """
    if (problem := _problem(path)) is not None:
        raise UsageError(f"{problem}. Expected the Python file of a program, as in `gridml run examples/mnist.py`.")
    copy, path = path, path if original is None else original
    name = f"gridml_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file. Its name must end in .py.")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    folder = folder_of(path)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # the user's own modules beside the file; last, so that they shadow nothing
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Kept)]
    if original is not None:
        sys.meta_path.insert(0, Kept(copy.parent, folder))
    _loading.append(path)
    try:
        exec(compiled(copy, path), vars(loaded))
    except (DataError, UnguardedError, Interruption):
        del sys.modules[name]
        raise  # it says all there is to say
    except BaseException as error:
        del sys.modules[name]
        raise ProgramError(f"{path} cannot be loaded:\n{user_traceback(error, path)}") from error
    finally:
        _loading.remove(path)
    programs: dict[str, Program] = {n: v for n, v in vars(loaded).items() if issubclass(type(v), Program)}
    distinct = {id(p): name for name, p in programs.items()}
    if len(distinct) != 1:
        names = f"{len(distinct)} ({', '.join(programs)})" if distinct else "none"
        raise ProgramError(
            f"{path} must hold exactly one gridml.Program; found {names}. Write program = gridml.Program(graph, train)."
        )
    program = next(iter(programs.values()))
    program.check()
    return program


def _is_ours(file: str) -> bool:
    return file == "<string>" or Path(file).is_relative_to(_GRIDML)  # where dataclasses make their methods


def _problem(path: Path) -> str | None:
    """Return why a program cannot be read from a path, None where it can."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"no such file: {path}"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISREG(mode):
        return f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'no regular file'}"
    if (length := len(path.name.encode(errors="surrogateescape"))) > MOST_NAME:
        return f"the name of {path} has {length} bytes, which is more than {MOST_NAME}"
    return None


def user_traceback(error: BaseException, path: Path) -> str:
    """Return the traceback of an error from the first frame in the user's file on, printable and short: frames of
    gridml's are no help to them, and of an error that it raises on purpose the message is enough."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, f in enumerate(frames) if Path(f.filename).resolve() == path.resolve()]
    shown = [f for f in frames[own[0] :] if not _is_ours(f.filename)] if own else []
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)] if shown else []
    words = [str(error)] if isinstance(error, GridmlError) else traceback.format_exception_only(error)
    return printable("".join([*lines, *words]).rstrip(), TRACEBACK)
