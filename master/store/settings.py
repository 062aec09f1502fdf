"""How a run is to be done: parsed once, written into the run directory, never changed deep inside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gridml import dataclass_json
from gridml.carriers.registry import CARRIERS
from gridml.errors import GridmlError, UsageError
from gridml.model import device_names
from gridml.protocol.compression import NONE
from gridml.protocol.compression import check as check_formats
from gridml.protocol.messages import NO_PUSH
from master.backends.base import BackendFacts, BackendOptions
from master.decisions.chunk_rules import CHUNK_RULES, GOODPUT
from master.decisions.crowding import STEPS_EACH
from master.decisions.placing import AUTO
from master.decisions.placing import NONE as NO_PLACEMENT

MOST_WORKERS = 10**6  # that a master can keep count of
MOST = 10**9  # epochs, and vertices of a chunk
MOST_SILENT_S = 1e9
# Of a chunk. A worker holds two, and one of them thrice while it is opened; the master has it twice while it is cut. A
# link of 100 Mbit/s takes 3 s for it. Cutting takes a master 0.1 to 0.3 s, in which it hears nobody.
CHUNK_BYTES = 32 * 10**6
MOST_CHECKED = 0.5  # of the pushes: what is trained twice must be less than what is trained
MOST_SEED = 2**32 - 1  # which NumPy's older generator takes, and user code may draw from that


def parse_bytes(option: str, text: str) -> int:
    """Return the bytes that an option's text says, such as 250kB, 100MB, 1.5 GB. Raises UsageError for what is no size,
    or less than a number's four bytes."""
    parts = re.fullmatch(r"\s*([0-9]{0,12}\.?[0-9]{1,12})\s*([kMG]?)B?\s*", text)
    size = int(float(parts[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[parts[2]]) if parts else 0
    if size < 4:
        raise UsageError(
            f"{option} is {text[:40]!r}; expected a size of at least 4 bytes in B, kB, MB or GB, such as 250kB, 1.5GB."
        )
    return size


def parse_chunk(text: str) -> dict[str, Any]:
    """Return the settings that the text of --chunk says: a number of vertices, or a rule that sizes follow. Raises
    UsageError for what is neither."""
    if text in CHUNK_RULES:
        return {"chunk": None, "chunk_rule": text}
    try:
        return {"chunk": int(text), "chunk_rule": GOODPUT}
    except ValueError:
        rules = " or ".join(CHUNK_RULES)
        raise UsageError(f"--chunk is {text[:40]!r}; expected a number of vertices, or {rules}.") from None


def check_seed(seed: int) -> None:
    """Raise UsageError for a seed that not every generator takes."""
    if not 0 <= seed <= MOST_SEED:
        raise UsageError(f"--seed is {seed}; expected a whole number from 0 to {MOST_SEED}.")


def check_placement(which: str, name: str, error: type[GridmlError] = UsageError) -> None:
    """Raise an `error` where a placement is neither auto nor none nor the `name` of a method; `which` placement that
    is, as the message says it."""
    if name in (AUTO, NO_PLACEMENT):
        return
    from gridml.placement.registry import METHODS  # numba and scipy, which takes half a second

    if name not in METHODS:
        raise error(f"{which} is {name[:40]!r}; expected {NO_PLACEMENT}, or one of {', '.join(METHODS)}.")


@dataclass(frozen=True)
class Settings:
    """Times are in seconds. None means that gridml chooses.

    `chunk` and `push_every` are vertices; `chunk_rule` is what the size of a chunk that gridml chooses follows, and
    `chunk_bytes` what it may have; `push_budget` is the share of time that pushes may take.
    `expected_lifetime` is a law of lives, as `chunk_model.parse` reads it, that sizes follow until the run has seen its
    own. `placement` is how vertices are placed: auto, none or the name of a method, by default what the program says.
    `steps_each` is how many batches a worker is to train in the run at least, or fewer are asked for. `carrier` is
    how messages travel, by default the back end's usual way, and `address` where workers reach the master with a
    carrier that has one. `compress` is the format of pushed steps, `compress_down` that of weights in answers.
    `spot_checks` is the share of the pushes that are trained a second time. `init_from` is whose replica a run begins
    from, RUN:which or a file, and with `init_partial` as much of it as fits. `options` are the back end's own; in JSON
    they stand under its name.
    """

    program: Path
    backend: str = "local"
    workers: int = 2
    epochs: int | None = None
    seed: int = 0
    chunk: int | None = None
    chunk_rule: str = GOODPUT
    chunk_bytes: int = CHUNK_BYTES
    placement: str | None = None
    push_every: int | None = None
    push_budget: float = 0.03
    expected_lifetime: str | None = None
    steps_each: int = STEPS_EACH
    silent_s: float = 120.0
    spot_checks: float = 0.0
    compress: str = NONE
    compress_down: str = NONE
    init_from: str | None = None
    init_partial: bool = False
    carrier: str = ""
    address: str | None = None
    device: str = device_names.AUTO
    loggers: tuple[str, ...] = ()
    options: BackendOptions = field(default_factory=BackendOptions)

    def __post_init__(self) -> None:
        for name, most in (("workers", MOST_WORKERS), ("epochs", MOST), ("chunk", MOST), ("push_every", NO_PUSH)):
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            option = self.facts.workers_option if name == "workers" else option
            if value is not None and value < 1:
                raise UsageError(f"{option} is {value}; expected at least 1.")
            if value is not None and value > most:
                raise UsageError(f"{option} is {value:,}; expected at most {most:,}.")
        if self.chunk_rule not in CHUNK_RULES:
            raise UsageError(f"--chunk is {self.chunk_rule!r}; expected one of {', '.join(CHUNK_RULES)}.")
        if self.chunk_bytes < 1:
            raise UsageError(f"--chunk-bytes is {self.chunk_bytes:,}; expected a size such as 32MB.")
        if not 0 <= self.steps_each <= MOST:
            raise UsageError(
                f"--steps-each is {self.steps_each:,}; expected from 0 to {MOST:,}: with 0 as many workers are asked "
                "for as are wanted, however little each trains."
            )
        for name, option in (("push_budget", "push_budget"), ("silent_s", "--silence")):
            if not getattr(self, name) > 0:
                raise UsageError(f"{option} is {getattr(self, name)}; expected a number above 0.")
        if not self.silent_s <= MOST_SILENT_S:
            raise UsageError(
                f"--silence is {self.silent_s:g}; expected at most {MOST_SILENT_S:g} seconds: longer than that, who is "
                "gone would never be given up."
            )
        if not 0 <= self.spot_checks <= MOST_CHECKED:
            raise UsageError(
                f"--spot-checks is {self.spot_checks:g}; expected a share from 0 to {MOST_CHECKED:g}: 0.02 trains one "
                "push in fifty twice."
            )
        if self.init_partial and self.init_from is None:
            raise UsageError("got --init-partial without --init-from; expected both, or neither.")
        if self.placement is not None:
            check_placement("--placement", self.placement)
        device_names.parse(self.device)
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
        """What is to be known of the back end."""
        return self.options.facts

    def to_json(self) -> dict[str, Any]:
        values = dataclass_json.to_json(self)
        del values["options"]
        return {**values, self.backend: self.options.to_json()}

    @staticmethod
    def from_json(values: Mapping[str, Any], options: type[BackendOptions]) -> Settings:
        """Make settings of what `to_json` gave; `options` is the type of the back end's own.

        Raises KeyError, TypeError or ValueError for what is none of ours.
        """
        name = values["backend"]
        common = {key: value for key, value in values.items() if key != name}
        return dataclass_json.from_json(Settings, {**common, "options": options.from_json(values[name])})
