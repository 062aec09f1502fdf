"""The best replica that a run has had, by a metric of evaluate: best.safetensors, which the ledger names.

It is written beside the file that is there, before the evaluation is in the ledger, and takes that one's place after:
a kill between the two leaves both, and the ledger says which of them is the best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from gridml.errors import DamagedError, LedgerError
from gridml.protocol import bundle
from master.store.ledger import Ledger
from master.store.reader import opened
from master.store.run_facts import read_facts
from master.store.rundir import RunDirectory, read_named


@dataclass(frozen=True)
class Best:
    """Version `version` of the replica, at the end of epoch `epoch` (from 0), has the best `value` of a metric so far;
    `goal` is "min:loss" or alike, `sha256` the file's."""

    version: int
    epoch: int
    goal: str
    value: float
    sha256: str

    FACT: ClassVar[str] = "best"


def read_best(root: Path) -> tuple[Best, dict[str, NDArray[Any]]]:
    """Return the best replica of the run in `root`, and its tensors by the names that they have in final.safetensors.

    Raises LedgerError where there is none, DamagedError where its file is damaged or gone.
    """
    with opened(root) as ledger:
        fact = read_facts(ledger).get(Best.FACT)
    if fact is None:
        raise LedgerError(
            f"{root} has kept no best replica. Say what it is the best of, as in gridml.Program(..., "
            f'keep="best:loss"); there is one once an epoch has been evaluated.'
        )
    best, directory = Best(**fact), RunDirectory(root)
    try:
        payload = read_named(directory.best, best.sha256, "the best replica")
    except DamagedError:
        if not directory.next_best.is_file():
            raise
        payload = read_named(directory.next_best, best.sha256, "the best replica")
    return best, bundle.decode(payload)[1]


class BestKeeper:
    """Keeps the best replica of one run."""

    def __init__(self, directory: RunDirectory, ledger: Ledger) -> None:
        self._directory = directory
        self._ledger = ledger

    @property
    def best(self) -> Best | None:
        """The best so far, as the ledger has it."""
        fact = self._ledger.get(Best.FACT)
        return None if fact is None else Best(**fact)

    def settle(self) -> None:
        """Finish what a master was at that was killed: the file that the ledger names takes its place, what it does not
        name is removed."""
        if self._directory.next_best.is_file():
            best = self.best
            if best is not None and bundle.digest(self._directory.next_best.read_bytes()) == best.sha256:
                self.publish()
            else:
                self._directory.next_best.unlink()

    def stage(self, best: Best, tensors: Mapping[str, NDArray[Any]]) -> Best:
        """Write what may become the best replica, durable; return it with its SHA-256. Touches no ledger, so that any
        thread may call it. Raises OSError."""
        message = {"version": best.version, "epoch": best.epoch + 1, "goal": best.goal, "value": best.value}
        pieces = bundle.pieces(message, tensors)
        bundle.write_atomic(self._directory.next_best, pieces)
        return Best(best.version, best.epoch, best.goal, best.value, pieces.sha256)

    def name(self, best: Best) -> None:
        """Name what was staged as the best. Must be called inside the ledger's transaction."""
        self._ledger.set(Best.FACT, asdict(best))

    def publish(self) -> None:
        """Let the file that the ledger now names take its place."""
        self._directory.next_best.replace(self._directory.best)
        bundle.sync_folder(self._directory.root)
