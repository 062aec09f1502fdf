"""The settings of a run: the options of its commands, parsed once, immutable, and stored in the run directory."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from gridml import dataclass_json
from gridml.carriers.registry import CARRIERS
from gridml.errors import GridmlError, UsageError
from gridml.model import device_memory
from gridml.protocol import bundle
from gridml.protocol.compression import NONE
from gridml.protocol.compression import check as check_formats
from gridml.protocol.foreign import read_regular
from gridml.protocol.messages import NO_PUSH
from master.state.jobs import BackendFacts, BackendOptions
from master.state.options import (
    BEGIN,
    FAILURES,
    FIRST,
    MERGING,
    OUTPUT,
    RESUME,
    SIMULATE,
    SIZES,
    TRAINED,
    WORKERS,
    check_bounds,
    described,
    fields_of,
    option,
)
from master.store.rundir import RunDirectory

CHUNK_RULES = GOODPUT, PAPER, GAUSSIAN = (
    "goodput",  # `chunk_model.choose`
    "paper",  # a chunk fills a lifetime
    "gaussian",  # the paper's search, for normally distributed lifetimes
)
STEPS_EACH = 150  # batches of the program's own size
AUTO, NO_PLACEMENT = "auto", "none"
MAX_WORKERS = 10**6
MAX_COUNT = 10**9  # epochs, and vertices of a chunk
MAX_SILENT_S = 1e9
MIN_SILENCE_S = 5.0  # of real workers
# A chunk's memory: a worker holds two chunks, and three copies of one while it is decoded; the master holds two copies
# while it cuts one. Transfer takes 3 s at 100 Mbit/s. Cutting blocks the master for 0.1 to 0.3 s.
CHUNK_BYTES = 32 * 10**6
MAX_SPOT_CHECKS = 0.5  # share of the pushes: less must be trained for checks than for credit
MAX_SEED = 2**32 - 1  # the maximum of NumPy's legacy generator, which user code may seed
BEGINS = (BEGIN, SIMULATE)
# Help texts that are too long for the line of their setting.
_CHUNK = "Vertices a lease; otherwise chosen for goodput, or as the paper has it: paper, gaussian."
_PLACEMENT = (
    "Vertices that touch the same rows go to one worker: where it pays, never, or by a method of gridml place such as "
    "parsa; otherwise what the program says."
)
_INIT_FROM = (
    "Begin with the replica of another run (final, or RUN:best, RUN:v57, RUN:e3) or with tensors of a file "
    "(.safetensors, .pt), instead of what the program makes."
)
_LOGGERS = (
    "Where figures go beside metrics.csv and metrics.jsonl: tensorboard, mlflow, wandb. May be repeated. For a run "
    "that goes on, instead of those so far, with all evaluations."
)
# Reasons why a setting is fixed, shown in error messages.
_SEED = "the order of the vertices in every epoch follows from it, and credits are ranges of that order"
_PLACED = "vertices are placed once, when a run begins, and credits are ranges of the order that follows"


def parse_bytes(option: str, text: str) -> int:
    """Parse a size such as 250kB, 100MB, 1.5 GB into bytes. Raises UsageError, also below 4 bytes (one number)."""
    parts = re.fullmatch(r"\s*([0-9]{0,12}\.?[0-9]{1,12})\s*([kMG]?)B?\s*", text)
    size = int(float(parts[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[parts[2]]) if parts else 0
    if size < 4:
        raise UsageError(
            f"{option} is {text[:40]!r}; expected a size of at least 4 bytes in B, kB, MB or GB, such as 250kB, 1.5GB."
        )
    return size


def parse_chunk(text: str) -> dict[str, Any]:
    """Parse --chunk into settings: a number of vertices, or a rule for sizes. Raises UsageError for neither."""
    if text in CHUNK_RULES:
        return {"chunk": None, "chunk_rule": text}
    try:
        return {"chunk": int(text), "chunk_rule": GOODPUT}
    except ValueError:
        rules = " or ".join(CHUNK_RULES)
        raise UsageError(f"--chunk is {text[:40]!r}; expected a number of vertices, or {rules}.") from None


def parse_seconds(option: str, text: str | None) -> float | None:
    """Parse an option's duration into seconds, None for None. Raises UsageError unless it is 0, or within the bounds of
    `chunk_model.lifetime`."""
    from chunk_model.lifetime import MAX_DURATION_S, MIN_DURATION_S, LifetimeError, parse_duration

    if text is None:
        return None
    try:
        value = parse_duration(text)
    except LifetimeError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(
            f"{option} is {text!r}; expected a time of at least 0 (0 itself, or {MIN_DURATION_S:g} to "
            f"{MAX_DURATION_S:g} s): seconds such as 0.05, or 90s, 45m, 1.5h."
        )
    return value


def parse_silence(text: str) -> float:
    """Parse --silence into seconds: any number, or a duration. Raises UsageError for neither. Bounds are checked later,
    by `check_silence`."""
    try:
        return float(text)
    except ValueError:
        return parse_seconds("--silence", text) or 0.0


def check_silence(seconds: float) -> None:
    """Raise UsageError for a silence shorter than a real worker may take to start."""
    if not seconds >= MIN_SILENCE_S:
        raise UsageError(
            f"--silence is {seconds:g}; expected at least {MIN_SILENCE_S:g} seconds: a worker sends nothing while it "
            "starts."
        )


def _located(text: str) -> str:
    """Return --init-from with an absolute path, independent of the working directory."""
    from master.store.saved_replica import located

    return located(text)


def check_seed(seed: int) -> None:
    """Raise UsageError for a seed that some generators reject."""
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(f"--seed is {seed}; expected a whole number from 0 to {MAX_SEED}.")


def check_placement(which: str, name: str, error: type[GridmlError] = UsageError) -> None:
    """Raise `error` unless `name` is auto, none or a placement method; `which` names the placement in the message."""
    if name in (AUTO, NO_PLACEMENT):
        return
    from gridml.placement.auto import METHODS  # imported late: numba and scipy take half a second

    if name not in METHODS:
        raise error(f"{which} is {name[:40]!r}; expected {NO_PLACEMENT}, or one of {', '.join(METHODS)}.")


@dataclass(frozen=True)
class Settings:
    """The settings of a run, as in settings.json, and the table of options that all back ends share.

    Times are in seconds. None means that gridml chooses. In JSON the back end's own `options` are stored under its
    name. A resumed run may change any setting that is not `fixed`: workers and carriers leave no trace in credits, and
    sizes, formats and checks apply to leases and pushes to come.
    """

    program: Path
    backend: str = "local"
    PANEL: ClassVar[str] = FIRST
    workers: int = option(2, "Workers at once.", bounds=(1, MAX_WORKERS))
    epochs: int | None = option(
        None, "Passes over the vertices in all; otherwise what the program says.", bounds=(1, MAX_COUNT)
    )
    seed: int = option(0, "Decides the order of vertices and first values.", commands=BEGINS, fixed=_SEED)
    chunk: int | None = option(None, _CHUNK, SIZES, metavar="N|RULE", kind=str, read=parse_chunk, bounds=(1, MAX_COUNT))
    #: the rule for a chunk size that gridml chooses; one of `CHUNK_RULES`
    chunk_rule: str = GOODPUT
    chunk_bytes: int = option(
        CHUNK_BYTES,
        "Bytes of a chosen chunk at most; otherwise 32MB.",
        SIZES,
        (BEGIN, RESUME),
        metavar="SIZE",
        kind=str,
        read=partial(parse_bytes, "--chunk-bytes"),
    )
    placement: str | None = option(None, _PLACEMENT, TRAINED, (BEGIN,), metavar="auto|none|METHOD", fixed=_PLACED)
    push_every: int | None = option(
        None, "Vertices between two pushes of a worker; otherwise chosen.", SIZES, bounds=(1, NO_PUSH)
    )
    #: share of a worker's time that pushes may take
    push_budget: float = 0.03
    #: a distribution of lifetimes (`chunk_model.parse`), used for sizes until the run has observed its own
    expected_lifetime: str | None = None
    steps_each: int = option(
        STEPS_EACH,
        f"Batches each is to train in the run, or fewer workers are asked for; otherwise {STEPS_EACH}; 0: all.",
        WORKERS,
        bounds=(0, MAX_COUNT),
        expected=f"from 0 to {MAX_COUNT:,}: 0 asks for every worker wanted, however little each trains",
    )
    silent_s: float = option(
        120.0,
        "Seconds (or 2m) without a sign of life after which a worker's leases go to others; otherwise 120.",
        FAILURES,
        name="silence",
        metavar="SECONDS",
        kind=str,
        read=parse_silence,
    )
    spot_checks: float = option(
        0.0,
        "Share of the pushes that another machine trains again; 0.02 is one in fifty.",
        FAILURES,
        bounds=(0, MAX_SPOT_CHECKS),
        expected=f"a share from 0 to {MAX_SPOT_CHECKS:g}: 0.02 trains one push in fifty twice",
    )
    compress: str = option(
        NONE, "What pushes carry: none, the values of tensors; int8 or int4, compressed steps.", MERGING, BEGINS
    )
    compress_down: str = option(NONE, "What answers bring weights in: none, as they are; bf16.", MERGING, BEGINS)
    init_from: str | None = option(None, _INIT_FROM, TRAINED, BEGINS, metavar="RUN[:which]|FILE", read=_located)
    init_partial: bool = option(
        False, "Of these take what fits by name and shape, and leave the others.", TRAINED, BEGINS
    )
    #: "" for the back end's default, which `__post_init__` fills in
    carrier: str = option(
        "", "How messages travel: chirp, or sftp where machines may connect to this one.", WORKERS, (BEGIN,)
    )
    address: str | None = option(
        None,
        "Where workers reach this machine; otherwise its full name and any free port.",
        WORKERS,
        (BEGIN, RESUME),
        flags=("--address", "--sftp"),
        metavar="HOST[:PORT]",
    )
    device: str = option(
        device_memory.AUTO,
        "What workers train on: a GPU where there is one, the CPU, or a GPU and nothing else.",
        commands=(BEGIN,),
        metavar="auto|cpu|cuda[:N]",
    )
    loggers: tuple[str, ...] = option((), _LOGGERS, commands=(BEGIN, RESUME), name="logger", metavar="NAME")
    options: BackendOptions = field(default_factory=BackendOptions)

    def __post_init__(self) -> None:
        check_bounds(self, workers=self.facts.workers_option)
        if self.chunk_rule not in CHUNK_RULES:
            raise UsageError(f"--chunk is {self.chunk_rule!r}; expected one of {', '.join(CHUNK_RULES)}.")
        if self.chunk_bytes < 1:
            raise UsageError(f"--chunk-bytes is {self.chunk_bytes:,}; expected a size such as 32MB.")
        for name, number in (("push_budget", self.push_budget), ("--silence", self.silent_s)):
            if not number > 0:
                raise UsageError(f"{name} is {number}; expected a number above 0.")
        if not self.silent_s <= MAX_SILENT_S:
            raise UsageError(
                f"--silence is {self.silent_s:g}; expected at most {MAX_SILENT_S:g} seconds: with more, a dead worker "
                "would never be given up."
            )
        if self.init_partial and self.init_from is None:
            raise UsageError("got --init-partial without --init-from; expected both, or neither.")
        if self.placement is not None:
            check_placement("--placement", self.placement)
        device_memory.parse(self.device)
        check_formats(self.compress, self.compress_down)
        check_seed(self.seed)
        if not self.carrier:
            object.__setattr__(self, "carrier", self.facts.carriers[0])
        if self.carrier != self.facts.carriers[0] or self.address is not None:
            self._check_carrier()

    def _check_carrier(self) -> None:
        allowed = [name for name, carrier in CARRIERS.all().items() if carrier.anywhere and self.facts.carries_files]
        allowed = list(dict.fromkeys([*self.facts.carriers, *allowed]))
        if self.carrier not in allowed:
            raise UsageError(f"--carrier is {self.carrier!r}; expected {' or '.join(allowed)}.")
        carrier = CARRIERS.find(self.carrier)
        if self.address is not None and not carrier.has_address:
            having = " or ".join(name for name in allowed if CARRIERS.find(name).has_address)
            raise UsageError(f"got --address without --carrier {having}; expected both, or neither.")
        carrier.check_address(self.address)

    @property
    def facts(self) -> BackendFacts:
        """Facts about the back end."""
        return self.options.facts

    def to_json(self) -> dict[str, Any]:
        values = dataclass_json.to_json(self)
        del values["options"]
        return {**values, self.backend: self.options.to_json()}

    @staticmethod
    def from_json(values: Mapping[str, Any], options: type[BackendOptions]) -> Settings:
        """Restore settings from `to_json`; `options` is the type of the back end's own.

        Raises KeyError, TypeError or ValueError for anything else.
        """
        name = values["backend"]
        common = {key: value for key, value in values.items() if key != name}
        return dataclass_json.from_json(Settings, {**common, "options": options.from_json(values[name])})


@dataclass(frozen=True)
class CommandOptions:
    """Options of commands and calls that are not stored as settings."""

    program: Path | None = option(None, "Another file of the same graph, such as a fixed one.", TRAINED, (RESUME,))
    with_changes: bool = option(
        False, "Take the program, its modules and sent files as they are now, and not the copies.", TRAINED, (RESUME,)
    )
    no_push: bool = option(False, "Push where a chunk ends, and not before: all or nothing.", SIZES, BEGINS)
    lifetime: str | None = option(
        None, "How long workers live, until the run has seen it: normal(45m,10m), exponential(1h).", FAILURES, (BEGIN,)
    )
    trace: Path | None = option(None, "The same, from a file of when machines came and went.", FAILURES, (BEGIN,))
    run_dir: Path | None = option(None, "Where the run is kept; otherwise runs/PROGRAM-TIME.", FIRST, BEGINS)
    #: only for back ends that can describe what they would do; the help is the back end's
    dry_run: bool = option(False, "", OUTPUT, (BEGIN,), terminal=True)
    #: like `prepare`, only for back ends whose masters are jobs
    foreground: bool = option(False, "Run the master in this terminal, not as a job of its own.", OUTPUT, (BEGIN,))
    prepare: bool = option(
        False, "Make the run and what its master is submitted by, no more.", OUTPUT, (BEGIN,), terminal=True
    )
    campaign: int | None = option(
        None, "Play random runs with every fault, until this number was killed.", FAILURES, (SIMULATE,), terminal=True
    )
    as_json: bool = option(False, "JSON on standard output, for programs.", FIRST, flags=("--json",), terminal=True)


def settings_said(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Settings` for these values of options, by name; None means not given. Raises UsageError."""
    asked = {each.name: values.get(each.name) for each in described(Settings)}
    if values.get("no_push"):
        if asked["push_every"] is not None:
            raise UsageError("got both --no-push and --push-every; expected one of them, or neither.")
        asked["push_every"] = NO_PUSH
    return fields_of(Settings, asked)


MAX_SETTINGS_BYTES = 1 << 20


def write_settings(run: RunDirectory, settings: Settings) -> str:
    """Write the settings of a run and their copy. Returns the SHA-256, which the caller records in the ledger."""
    # The copy first: if the master is killed in between, the old file still matches the SHA-256 in the ledger.
    text = (json.dumps(settings.to_json(), indent=2) + "\n").encode()
    for path in (run.settings_copy, run.settings):
        bundle.write_atomic(path, text)
    return bundle.digest(text)


def copy_settings(run: RunDirectory) -> str:
    """Copy the file over its copy. Returns its SHA-256."""
    content = read_regular(run.settings, MAX_SETTINGS_BYTES)
    if content != _copy(run):
        bundle.write_atomic(run.settings_copy, content)
    return bundle.digest(content)


def settings_text(run: RunDirectory, sha256: str | None) -> bytes:
    """Read the settings' file. Raises ValueError unless it has this SHA-256 or equals its copy, and OSError."""
    # A flipped bit makes another path or number that looks valid. A person who edits the settings changes both files.
    content = read_regular(run.settings, MAX_SETTINGS_BYTES)
    if bundle.digest(content) != sha256 and content != _copy(run):
        raise ValueError(f"its SHA-256 is not the one in the ledger, and it is not the same as {run.settings_copy}")
    return content


def has_copy(run: RunDirectory, sha256: str | None) -> bool:
    """Return whether the copy has this SHA-256."""
    content = _copy(run)
    return content is not None and bundle.digest(content) == sha256


def _copy(run: RunDirectory) -> bytes | None:
    try:
        return read_regular(run.settings_copy, MAX_SETTINGS_BYTES)
    except (OSError, ValueError):
        return None
