"""The plan of `gridml plan`: chunk size, push interval, other sizes, reasons, and the measured load of a master.

Each measured push takes the steps of a real one: the master reads it from a mailbox on disk, checks SHA-256 sums, loads
the base version, merges, writes the new version durably, and answers. The answer holds a small replica itself, or the
name of the version file in which a large one is published. Not measured, because their cost is small beside a large
replica: the ledger, the state of the gate (which admits pushes), and carriers other than a directory.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chunk_model.choose import Choice, ChoiceError, Work, choose
from chunk_model.goodput import ChunkError, CostError, Costs, chunk_goodput, job_s
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.lifetime import LifetimeError
from chunk_model.paper import deterministic_chunk
from chunk_model.replay import replay
from gridml.aggregates import Merge, RuleSet, VertexState, stale_mean
from gridml.caching.master_copy import reconstruct
from gridml.carriers.directory import DirectoryMailbox, DirectoryMailboxes
from gridml.engine.pace import PaceFacts, TypicalCosts
from gridml.errors import UsageError
from gridml.protocol import bundle
from gridml.protocol.compression import FORMATS, NONE, TensorStep
from gridml.protocol.compression import check as check_formats
from gridml.protocol.push import PushContent, ReplicaPart, decode, encode, encode_replica
from master.leases.sizing import MERGING, merging_s
from master.placing.placing import PlannedPlacement, plan_placement
from master.planning.lifetime_sources import LifetimeEstimate, estimate_lifetime
from master.planning.options import PlanOptions
from master.store.reader import PushCosts
from master.store.versions import ReplicaState, Versions
from master.sync.replies import sends_file
from master.telemetry.worth import RunLength, sharing_workers, worker_limit

TENSORS = 16  # tensors of the replica
MEMORY, DISK = 8, 4  # memory and disk space that a measurement needs, in multiples of the replica
REPEATS, MAX_MEASURING_S = 5, 5.0  # pushes to measure after a warm-up, and the time after which no other one starts
STALE = Merge(version=2, base=1, vertices=1, credited_by_others=3, live=4)
KEY = ("Replica", 0)


@dataclass(frozen=True)
class MasterLoad:
    """The cost of a push for a master."""

    bytes_down: int  #: bytes that the worker receives: the answer, or the version file that it names
    bytes_up: int  #: size of the push
    push_s: float  #: seconds that the master spends on the push

    def max_workers(self, interval_s: float) -> int:
        """Return how many workers may push once per `interval_s`, if the master spends half of its time merging."""
        return int(interval_s * MERGING / self.push_s)


def measure(nbytes: int, compress: str = NONE, notify: Callable[[str], None] = lambda text: None) -> MasterLoad:
    """Measure pushes of a float32 replica of `nbytes` (at least 4) in a temporary folder.

    This takes seconds, and a multiple of `nbytes` in memory and on disk; `notify` is called with a message first.
    Raises UsageError if memory or disk space is too small.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if MEMORY * nbytes > memory:
        raise UsageError(
            f"--replica is {nbytes:,} bytes; expected at most {memory // MEMORY:,}: measuring its pushes needs "
            f"{MEMORY} times as much memory. Run gridml plan on a machine like the master's."
        )
    notify(f"Measuring pushes of {nbytes:,} bytes ...")
    try:
        with tempfile.TemporaryDirectory(prefix="gridml-plan-") as folder:
            return _measured(Path(folder), nbytes, compress)
    except (OSError, MemoryError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "no memory"
        raise UsageError(
            f"--replica: pushes of {nbytes:,} bytes cannot be measured here ({why}); expected space for {DISK} such "
            f"replicas in {tempfile.gettempdir()}. Free some space, or set TMPDIR to another folder."
        ) from error


def _measured(folder: Path, nbytes: int, compress: str) -> MasterLoad:
    random = np.random.default_rng(0)
    # Elements of each tensor: the replica in `TENSORS` equal parts; a replica of a few bytes has fewer tensors.
    sizes = [len(part) for part in np.array_split(np.empty(max(1, nbytes // 4), np.bool_), TENSORS) if len(part)]
    tensors = {f"Replica/0/model/{i}": random.standard_normal(size, np.float32) for i, size in enumerate(sizes)}
    state = ReplicaState(modules={KEY: VertexState(tensors)})
    versions = Versions(folder / "versions")
    sha256 = versions.write(1, state)
    mailboxes = DirectoryMailboxes(folder)
    mailboxes.open("w1")
    sender = DirectoryMailbox(folder, "w1")
    payload = bundle.pieces({}, encode(_content(tensors, compress)))
    rules = RuleSet(dict.fromkeys(tensors, stale_mean()))
    taken: list[float] = []
    for number in _numbers(taken):
        sender.send(number, payload)
        began_s = time.perf_counter()
        (message,) = mailboxes.collect()
        base = versions.mapped(1, sha256)
        content = decode(bundle.opened(message.payload)[1])
        part = reconstruct(content, {KEY: base.modules[KEY].tensors})
        merged = rules.merge(VertexState(tensors), part.modules[KEY], base.modules[KEY].tensors, STALE)
        versions.write(2, ReplicaState(modules={KEY: merged.state}))
        down = _answer(mailboxes, number, versions.path(2), merged.state)
        del message, content, part, merged  # a master frees these before the next push, too
        taken.append(time.perf_counter() - began_s)
    sender.close()
    mailboxes.stop()
    return MasterLoad(down, len(payload), median(taken[1:] or taken))


def _answer(mailboxes: DirectoryMailboxes, number: int, path: Path, merged: VertexState) -> int:
    """Answer a push as a master does. Return the bytes that the worker receives, in the answer or as a version file."""
    file_bytes, brings = path.stat().st_size, sum(tensor.nbytes for tensor in merged.tensors.values())
    sends, _ = sends_file(brings, file_bytes, rows=False, short=False, near=False)
    if sends and mailboxes.share(f"version-{number:08d}", path):
        mailboxes.answer("w1", number, bundle.pieces({}, {}))
        mailboxes.retract(f"version-{number - 1:08d}")
        return file_bytes
    answer = bundle.pieces({}, encode_replica(ReplicaPart({KEY: merged.tensors})))
    mailboxes.answer("w1", number, answer)
    return len(answer)


def _content(tensors: dict[str, NDArray[np.float32]], compress: str) -> PushContent:
    """Return a push of all tensors, each changed by 0.1%."""
    pushed = {name: tensor * np.float32(1.001) for name, tensor in tensors.items()}
    if compress == NONE:
        return PushContent(ReplicaPart({KEY: pushed}))
    form = FORMATS[compress]
    steps = {}
    for name, tensor in pushed.items():
        codes = form.pack(tensor - tensors[name])
        assert codes is not None  # `pack` returns None only for steps that are not finite
        steps[name] = TensorStep(form, codes)
    return PushContent(ReplicaPart(), steps={KEY: steps})


def _numbers(taken: list[float]) -> Iterator[int]:
    """Yield message numbers until enough pushes were measured; the first one is a warm-up."""
    number = 0
    while number <= REPEATS and sum(taken) < MAX_MEASURING_S:
        number += 1
        yield number


PUSH_S = 0.1  # default cost of a push
REPLAYED, LIVES = 25, 20_000  # number of sizes to replay for a plot; number of lives to draw from a given distribution


@dataclass(frozen=True)
class SizeCandidate:
    """A chunk size to compare."""

    name: str
    chunk: int  #: vertices of a chunk
    push_every: int | None  #: vertices between two pushes; None: no pushes
    job_s: float  #: seconds that a chunk takes if it is not interrupted
    goodput: float


@dataclass(frozen=True)
class ReplayedSize:
    """Goodput of a chunk size in a replay of lives, with its 95% confidence interval (`low` to `high`)."""

    chunk: int
    goodput: float
    low: float
    high: float


@dataclass(frozen=True)
class Plan:
    """A choice of chunk size, and the facts that it is based on."""

    choice: Choice
    estimate: LifetimeEstimate
    costs: Costs
    work: Work
    candidates: tuple[SizeCandidate, ...]  #: half the chosen size (unless it is 0), the choice, its double, the paper's
    length: RunLength | None = None  #: length of the run; None: not known
    load: MasterLoad | None = None  #: measured cost of a push; None: no --replica was given
    placement: PlannedPlacement | None = None  #: placement of the run; None: no --program, or nothing to place
    #: number of workers that can share each batch, if the program's steps can be added; None: no batch, or no cost of a
    #: push was given or measured
    sharing: int | None = None

    @property
    def paper(self) -> SizeCandidate:
        return self.candidates[-1]

    @property
    def interval_s(self) -> float:
        """Seconds between two pushes of a worker; without pushes, the duration of a chunk."""
        if self.choice.push_interval_s is None:
            return job_s(self.costs, self.choice.chunk, None)
        return self.choice.push_interval_s

    @property
    def useful(self) -> tuple[int, str] | None:
        """(largest number of workers that the run is long enough for, reason), if replicas are averaged. None if there
        is no limit, or if the length of the run is not known."""
        count, reason = (None, "") if self.length is None else worker_limit(self.length)
        return None if count is None else (count, reason)

    @property
    def max_workers(self) -> int | None:
        """The number of workers that one master can serve at `interval_s`; None if the cost of a push was not
        measured."""
        return None if self.load is None else self.load.max_workers(self.interval_s)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON data; values that do not apply are None.

        `lives` is the source of `lifetime`, `why` is the reason for its family, and `families` is the score of each
        family. `curve` is goodput by chunk size. `regret` is the share of the best goodput that the choice could lose
        because only a sample of lives was observed. `master` is the measured cost of a push and the number of workers
        that this cost allows. `useful_workers` is the number of workers that the run is long enough for, and
        `sharing_workers` the number that can share each batch. `placement` is the placement that a run would make.
        """
        choice, selected = self.choice, self.estimate.selected
        return {
            "chunk": choice.chunk,
            "push_every": choice.push_every,
            "push_interval_s": choice.push_interval_s,
            "goodput": choice.goodput,
            "lifetime": str(choice.lifetime),
            "lives": self.estimate.origin,
            "why": None if selected is None else selected.reason,
            "families": None if selected is None else dict(selected.scores),
            "reason": choice.reason,
            "warnings": list(choice.warnings),
            "regret": None if choice.regret is None else {"median": choice.regret[0], "p95": choice.regret[1]},
            "paper": {"chunk": self.paper.chunk, "goodput": self.paper.goodput},
            "useful_workers": None if self.useful is None else self.useful[0],
            "sharing_workers": self.sharing,
            "master": None
            if self.load is None
            else {**dataclasses.asdict(self.load), "most_workers": self.max_workers},
            "placement": None
            if self.placement is None
            else {**dataclasses.asdict(self.placement), "most_saved": self.placement.most_saved},
            "curve": [{"chunk": point.chunk, "goodput": point.goodput} for point in choice.curve],
        }


def make_plan(options: PlanOptions, notify: Callable[[str], None] = lambda text: None) -> Plan:
    """Choose a chunk size. `notify` is called with a message before a long measurement.

    Raises UsageError for options that are wrong or can never work, LedgerError for a run that cannot be read.
    """
    if options.no_push and options.push_cost is not None:
        raise UsageError("got --push-cost and --no-push; expected only one, or neither for a push of 0.1 s.")
    if options.t_exec == 0:
        raise UsageError("--t-exec is 0; expected the time to train a vertex, above 0. Measure it on a few vertices.")
    if options.t_exec is None and options.run is None:
        raise UsageError("got no --t-exec; expected the time to train a vertex, such as --t-exec 0.05.")
    estimate = estimate_lifetime(options)
    run = estimate.run
    # Options that are given override what the run measured.
    exec_s = options.t_exec if run is None or options.t_exec is not None else run.exec_s
    if exec_s is None:
        raise UsageError(f"--run: no worker of {options.run} has trained anything yet; give --t-exec.")
    many = options.many_chunks if options.many_chunks is not None else run is not None and run.many
    if options.boot and not many:
        raise UsageError("got --boot without --many-chunks; expected both, or --t-start for machines with one chunk.")
    measured = None if run is None else run.push
    push_s = options.push_cost
    if push_s is None:
        push_s = PUSH_S if measured is None else measured.push_s
    costs = Costs(
        exec_s=exec_s,
        copy_s=options.t_copy,
        start_s=options.t_start,
        end_s=options.t_end,
        push_s=None if options.no_push else push_s,
        wait_s=options.wait,
        boot_s=options.boot,
    )
    workers = options.workers if run is None else options.workers or run.workers
    planned = None if options.program is None else plan_placement(options.program.absolute(), workers)
    vertices = options.vertices if run is None else options.vertices or run.vertices
    if vertices is None and planned is not None:
        vertices = planned.vertices
    length, load = _length(options, vertices), _load(options, notify)
    placement = None if planned is None else planned.placement
    work = Work(
        vertices=vertices,
        workers=workers,
        largest=options.largest,
        many=many,
        push_at_least=max(1, round(_push_least_s(measured, load, workers or 1) / costs.exec_s)),
    )
    try:
        choice = choose(estimate.lifetime, costs, work, observations=estimate.observations)
        candidates = _candidates(choice, costs, many=many)
        sharing = None if options.no_push else _sharing(length, exec_s, options.push_cost, measured, load)
        return Plan(choice, estimate, costs, work, candidates, length, load, placement, sharing)
    except (ChoiceError, ChunkError, CostError, LifetimeError) as error:
        raise UsageError(str(error)) from error


def _push_least_s(measured: PushCosts | None, load: MasterLoad | None, workers: int) -> float:
    """Return the minimum seconds between two pushes of a worker: the travel time of one push, or the time that the
    master takes to merge one push of every worker, whichever is longer. A time that was not measured counts as 0."""
    merge_s = load.push_s if load is not None else 0.0 if measured is None else measured.merge_s
    return max(0.0 if measured is None else measured.travel_s, merging_s(workers, merge_s))


def _sharing(
    length: RunLength | None,
    exec_s: float,
    push_s: float | None,
    measured: PushCosts | None,
    load: MasterLoad | None,
) -> int | None:
    """Return how many workers can share each batch by the costs of a push that were given (`push_s`) or measured."""
    merge_s = load.push_s if load is not None else 0.0 if measured is None else measured.merge_s
    if push_s is None:
        push_s = merge_s if measured is None else measured.push_s
    if length is None or push_s + merge_s <= 0:
        return None
    costs = TypicalCosts(1 / exec_s, push_s + merge_s, 0.0 if measured is None else measured.travel_s)
    facts = PaceFacts(1, length.batch, speed=costs.speed, merging_s=merging_s(1, merge_s), typical=costs)
    return sharing_workers(facts, 0)[0]


def _length(options: PlanOptions, vertices: int | None) -> RunLength | None:
    """Return the length of the run; None without --epochs and --batch. Raises UsageError if only some of --epochs,
    --batch and --vertices are known."""
    if options.epochs is None and options.batch is None:
        return None
    if options.epochs is None or options.batch is None or vertices is None:
        given = {"--epochs": options.epochs, "--batch": options.batch, "--vertices": vertices}
        got = " and ".join(name for name, value in given.items() if value is not None)
        raise UsageError(f"got {got}; expected {', '.join(given)} together, to say how many workers are useful.")
    return RunLength(vertices * options.epochs, options.batch)


def _load(options: PlanOptions, notify: Callable[[str], None]) -> MasterLoad | None:
    """Measure the cost of a push for the master, if the size of the replica is given."""
    compress = options.compress or NONE
    check_formats(compress, NONE)
    if options.replica is not None:
        return measure(options.replica, compress, notify)
    if options.compress is not None:
        raise UsageError("got --compress without --replica; expected both, such as --replica 100MB.")
    return None


def all_or_nothing(costs: Costs) -> Costs:
    """Return the costs of the same work without pushes."""
    return replace(costs, push_s=None)


def replay_sizes(plan: Plan) -> tuple[ReplayedSize, ...]:
    """Check the model: replay chunk sizes of the whole curve life by life, without the model's formulas.

    If a distribution was given, lives are drawn from it. If lives were observed, the same number of lives is taken from
    their Kaplan-Meier estimate, which extends censored lives. In that case the points also test the fitted
    distribution, and their intervals show the uncertainty of so few lives, assuming that lives are independent.
    """
    seen, choice = plan.estimate.observations, plan.choice
    if seen is None:
        lives = choice.lifetime.sample(np.random.default_rng(0), LIVES)
    else:
        lives = KaplanMeier.of(seen).quantile((np.arange(len(seen)) + 0.5) / len(seen))
    low, high = choice.curve[0].chunk, choice.curve[-1].chunk
    points = []
    # Sizes are spaced evenly on the plot's logarithmic axis. `unique` drops small sizes that rounding made equal.
    for chunk in np.unique(np.geomspace(low, high, REPLAYED).round().astype(np.int64)).tolist():
        every = None if choice.push_every is None else min(choice.push_every, chunk)
        point = replay(lives, plan.costs, chunk, every, plan.work.many)
        points.append(ReplayedSize(chunk, point.goodput, point.low, point.high))
    return tuple(points)


def _candidates(choice: Choice, costs: Costs, *, many: bool) -> tuple[SizeCandidate, ...]:
    """Return the sizes to compare: half, the choice and double, all with the choice's push interval, and the paper's
    size without pushes."""
    candidates = []
    for name, chunk in (("half", choice.chunk // 2), ("chosen", choice.chunk), ("double", 2 * choice.chunk)):
        if chunk == 0:
            continue
        every = None if choice.push_every is None else min(choice.push_every, chunk)
        value = choice.goodput
        if name != "chosen":
            value = chunk_goodput(choice.lifetime, costs, chunk, many=many, push_every=every)
        candidates.append(SizeCandidate(name, chunk, every, job_s(costs, chunk, every), value))
    without = all_or_nothing(costs)
    chunk = deterministic_chunk(choice.lifetime.mean(), costs)
    value = chunk_goodput(choice.lifetime, without, chunk, many=many)
    return (*candidates, SizeCandidate("the paper's", chunk, None, job_s(without, chunk), value))
