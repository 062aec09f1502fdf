"""The settings of a run: the options of its commands, parsed once, immutable, and stored in the run directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

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
    FROM_1,
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
    parse_bytes,
    parse_seconds,
)
from master.store.rundir import RunDirectory

CHUNK_RULES = GOODPUT, PAPER, GAUSSIAN = (
    "goodput",  # chosen by `chunk_model.choose`
    "paper",  # a chunk takes one expected lifetime
    "gaussian",  # the paper's search, for normally distributed lifetimes
)
STEPS_EACH = 150  # default of --steps-each, in batches of the program's own size
AUTO, NO_PLACEMENT = "auto", "none"
MAX_WORKERS = 10**6
MAX_COUNT = 10**9  # epochs, and vertices of a chunk
MAX_SILENT_S = 1e9
MAX_SETTINGS_BYTES = 1 << 20
MIN_SILENCE_S = 5.0  # minimum of --silence for real workers; simulations accept less
# Default bound on a chunk's size, which limits memory. A worker holds two chunks, and three copies of a chunk that it
# decodes. The master holds two copies of a chunk that it cuts. A chunk of this size takes 3 s at 100 Mbit/s, and
# cutting it blocks the master for 0.1 to 0.3 s.
CHUNK_BYTES = 32 * 10**6
MAX_SPOT_CHECKS = 0.5  # share of the pushes; with more, workers would train more for checks than for credit
MAX_SEED = 2**32 - 1  # the maximum of NumPy's legacy generator, which user code may seed
BEGINS = (BEGIN, SIMULATE)
# Help texts that are too long for the line of their setting.
_CHUNK = "Vertices per lease, or a rule of the paper: paper, gaussian. Default: chosen for goodput."
_PLACEMENT = (
    "Assign vertices that touch the same rows to one worker: auto (if it saves traffic), none, or a method of gridml "
    "place, such as parsa. Default: as in the program."
)
_INIT_FROM = (
    "Initial values: the replica of another run (RUN, RUN:best, RUN:v57, RUN:e3) or a file of tensors (.safetensors, "
    ".pt). Default: the program's own."
)
_LOGGERS = (
    "Send figures to tensorboard, mlflow or wandb, in addition to metrics.csv and metrics.jsonl; repeatable. On "
    "resume it replaces the run's loggers, which get all evaluations."
)
# Reasons why a setting is fixed, shown in error messages.
_SEED = "the order of the vertices in every epoch follows from it, and credits are ranges of that order"
_PLACED = "vertices are placed once, when a run begins, and credits are ranges of the order that follows"


def parse_chunk(text: str) -> dict[str, Any]:
    """Parse --chunk into settings: a number of vertices, or a rule for sizes. Raises UsageError for anything else."""
    if text in CHUNK_RULES:
        return {"chunk": None, "chunk_rule": text}
    try:
        return {"chunk": int(text), "chunk_rule": GOODPUT}
    except ValueError:
        rules = " or ".join(CHUNK_RULES)
        raise UsageError(f"--chunk is {text[:40]!r}; expected a number of vertices, or {rules}.") from None


def parse_silence(text: str) -> float:
    """Parse --silence into seconds: a number, or a duration. Raises UsageError for anything else.
    `check_silence` checks the bounds later."""
    try:
        return float(text)
    except ValueError:
        return parse_seconds("--silence", text) or 0.0


def check_silence(seconds: float) -> None:
    """Raise UsageError for a silence shorter than a real worker can take to start."""
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
class RunSettings:
    """Settings of the program, its initial values, the order of vertices and the workers; part of the specification."""

    program: Path
    backend: str = "local"
    PANEL: ClassVar[str] = FIRST
    workers: int = option(2, "Number of concurrent workers.", bounds=(1, MAX_WORKERS))
    steps_each: int = option(
        STEPS_EACH,
        "Batches per worker below which fewer workers are requested; 0: never fewer.",
        WORKERS,
        bounds=(0, MAX_COUNT),
        expected=f"from 0 to {MAX_COUNT:,}: 0 requests all workers, however little each trains",
    )
    epochs: int | None = option(
        None, "Total passes over the vertices. Default: as in the program.", bounds=(1, MAX_COUNT)
    )
    seed: int = option(0, "Random seed of the vertices' order and initial values.", commands=BEGINS, fixed=_SEED)
    placement: str | None = option(None, _PLACEMENT, TRAINED, (BEGIN,), metavar="auto|none|METHOD", fixed=_PLACED)
    init_from: str | None = option(None, _INIT_FROM, TRAINED, BEGINS, metavar="RUN[:which]|FILE", read=_located)
    init_partial: bool = option(
        False, "With --init-from: use only the tensors that fit by name and shape.", TRAINED, BEGINS
    )
    options: BackendOptions = field(default_factory=BackendOptions)

    @property
    def facts(self) -> BackendFacts:
        """Facts about the back end."""
        return self.options.facts


@dataclass(frozen=True)
class SizeSettings:
    """Sizes of chunks and pushes, and the formats of pushes and replies. Leases and replies to workers use them."""

    chunk: int | None = option(None, _CHUNK, SIZES, metavar="N|RULE", kind=str, read=parse_chunk, bounds=(1, MAX_COUNT))
    #: the rule for a chunk size that gridml chooses; one of `CHUNK_RULES`
    chunk_rule: str = GOODPUT
    chunk_bytes: int = option(
        CHUNK_BYTES,
        "Largest size of a chunk that gridml chooses. Default: 32MB.",
        SIZES,
        (BEGIN, RESUME),
        metavar="SIZE",
        kind=str,
        read=partial(parse_bytes, "--chunk-bytes"),
        bounds=FROM_1,
    )
    push_every: int | None = option(
        None, "Vertices between two pushes of a worker. Default: chosen.", SIZES, bounds=(1, NO_PUSH)
    )
    #: largest share of a worker's time that pushes should take
    push_budget: float = 0.03
    #: a distribution of lifetimes (`chunk_model.parse`), used for sizes until the run has observed its own
    expected_lifetime: str | None = None
    compress: str = option(
        NONE, "Content of pushes: none (values of tensors), int8 or int4 (compressed steps).", MERGING, BEGINS
    )
    compress_down: str = option(NONE, "Format of weights in answers: none (unchanged) or bf16.", MERGING, BEGINS)


Part = TypeVar("Part", RunSettings, SizeSettings)


@dataclass(frozen=True)
class Settings(SizeSettings, RunSettings):
    """The settings of a run, as in settings.json, and the table of options that all back ends share.

    Times are in seconds. None means that gridml chooses. In JSON the back end's own `options` are stored under the
    name of the back end. A resumed run is allowed to change any setting that is not `fixed`, because workers and
    carriers leave no trace in credits, and sizes, formats and checks apply only to later leases and pushes.
    """

    silent_s: float = option(
        120.0,
        "Time without a heartbeat after which a worker's leases are reassigned: seconds, or 2m. Default: 120.",
        FAILURES,
        name="silence",
        metavar="SECONDS",
        kind=str,
        read=parse_silence,
    )
    spot_checks: float = option(
        0.0,
        "Share of pushes that another machine repeats to check them; 0.02 is one in fifty.",
        FAILURES,
        bounds=(0, MAX_SPOT_CHECKS),
        expected=f"a share from 0 to {MAX_SPOT_CHECKS:g}: 0.02 trains one push in fifty twice",
    )
    #: "" for the back end's default, which `__post_init__` fills in
    carrier: str = option(
        "", "Transport of messages: chirp, or sftp if machines can connect to this one.", WORKERS, (BEGIN,)
    )
    address: str | None = option(
        None,
        "Address at which workers reach this machine. Default: its full name, any free port.",
        WORKERS,
        (BEGIN, RESUME),
        flags=("--address", "--sftp"),
        metavar="HOST[:PORT]",
    )
    device: str = option(
        device_memory.AUTO,
        "Workers' device: auto (a GPU if there is one), cpu, or cuda (only a GPU).",
        commands=(BEGIN,),
        metavar="auto|cpu|cuda[:N]",
    )
    loggers: tuple[str, ...] = option((), _LOGGERS, commands=(BEGIN, RESUME), name="logger", metavar="NAME")

    def __post_init__(self) -> None:
        check_bounds(self, workers=self.facts.workers_option)
        if self.chunk_rule not in CHUNK_RULES:
            raise UsageError(f"--chunk is {self.chunk_rule!r}; expected one of {', '.join(CHUNK_RULES)}.")
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

    def part(self, of: type[Part]) -> Part:
        """Return the settings that belong to the base class `of`."""
        return of(**{each.name: getattr(self, each.name) for each in fields(of)})

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

    program: Path | None = option(None, "Another program for the same graph, such as a fixed one.", TRAINED, (RESUME,))
    with_changes: bool = option(
        False, "Use the current program, modules and sent files instead of the run's copies.", TRAINED, (RESUME,)
    )
    no_push: bool = option(False, "Push only at the end of a chunk: all or nothing.", SIZES, BEGINS)
    lifetime: str | None = option(
        None, "Expected lifetimes, until the run has its own: normal(45m,10m), exponential(1h).", FAILURES, (BEGIN,)
    )
    trace: Path | None = option(None, "Expected lifetimes, as a trace file of machines.", FAILURES, (BEGIN,))
    run_dir: Path | None = option(None, "Directory of the run. Default: runs/PROGRAM-TIME.", FIRST, BEGINS)
    #: only for back ends that can describe what they would do; each back end gives its own help text
    dry_run: bool = option(False, "", OUTPUT, (BEGIN,), terminal=True)
    #: like `prepare`, only for back ends whose masters are jobs
    foreground: bool = option(False, "Run the master in this terminal instead of as a job.", OUTPUT, (BEGIN,))
    prepare: bool = option(
        False, "Create the run and the submit file of its master, but submit nothing.", OUTPUT, (BEGIN,), terminal=True
    )
    campaign: int | None = option(
        None, "Simulate random runs with all faults, up to this number of kills.", FAILURES, (SIMULATE,), terminal=True
    )
    as_json: bool = option(False, "Print JSON Lines: an object a line.", FIRST, flags=("--json",), terminal=True)


def settings_said(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values of options, by name, to fields of `Settings`. None means not given. Raises UsageError."""
    asked = {each.name: values.get(each.name) for each in described(Settings)}
    if values.get("no_push"):
        if asked["push_every"] is not None:
            raise UsageError("got both --no-push and --push-every; expected one of them, or neither.")
        asked["push_every"] = NO_PUSH
    return fields_of(Settings, asked)


def write_settings(run: RunDirectory, settings: Settings) -> str:
    """Write the settings of a run and their copy. Returns the SHA-256, which the caller records in the ledger."""
    # The copy is written first, so that after a kill in between the old file still matches the SHA-256 in the ledger.
    text = (json.dumps(settings.to_json(), indent=2) + "\n").encode()
    for path in (run.settings_copy, run.settings):
        bundle.write_atomic(path, text)
    return bundle.digest(text)


def copy_settings(run: RunDirectory) -> str:
    """Copy the settings file over its copy. Returns the SHA-256."""
    content = read_regular(run.settings, MAX_SETTINGS_BYTES)
    if content != _copy(run):
        bundle.write_atomic(run.settings_copy, content)
    return bundle.digest(content)


def settings_text(run: RunDirectory, sha256: str | None) -> bytes:
    """Read the settings file. Raises OSError, and ValueError unless it has this SHA-256 or equals its copy."""
    # The copy tells damage from an edit: a flipped bit can look valid but changes only one file; a person edits both.
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
