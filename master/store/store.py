"""The persistent state of a run, which a commit writes and a master loads on startup."""

from __future__ import annotations

from dataclasses import dataclass

from gridml.errors import LedgerError, UsageError
from master.store.diagnosis import translate_errors
from master.store.ledger import Ledger
from master.store.local_fields import LocalFields
from master.store.replica import Replica
from master.store.rundir import RunDirectory, command
from master.store.spec import RunSpec, differences, identity, tensor_differences
from master.store.versions import Versions

MAX_SHOWN = 8  # differences listed in one message


@dataclass(frozen=True)
class Store:
    """The parts of a run's state. They are consistent with one another at every commit of the ledger."""

    ledger: Ledger
    versions: Versions  # the files of `replica`
    replica: Replica
    fields: LocalFields
    undone: int | None = None  # vertices credited in a newer ledger that was lost; None: no ledger was lost

    def sweep(self) -> None:
        """Remove files that neither the ledger nor its copy names: those of failed or undone commits."""
        self.versions.sweep({*self.ledger.saved_versions, *self.ledger.copied_versions})
        self.fields.sweep(self.ledger.base(), self.ledger.patches())


def open_store(spec: RunSpec, directory: RunDirectory, ledger: Ledger, now: float, *, durable: bool) -> Store:
    """Take the ledger over, and load replica and fields as of its last commit.

    Raises LedgerError if one of them is damaged or missing, or if data or settings differ from those that the run began
    with.
    """
    with translate_errors(directory.root):
        # Checks that need only the ledger come before the takeover, which ends the previous master's right to write.
        ledger.count_credits()
        _check_identity(ledger, spec)
        return _opened(ledger, spec, directory, now, durable=durable)


def _check_identity(ledger: Ledger, spec: RunSpec) -> None:
    differ = differences(ledger.get("identity", {}), identity(spec))
    epochs, begun = spec.epochs, ledger.newest_epoch()[0] + 1
    if epochs < begun and spec.settings.epochs is not None:
        raise UsageError(
            f"epochs is {epochs}, and {begun} of {ledger.path.parent} have begun; expected {begun} or more. To take "
            f"the run back to the end of an earlier one: {command('rollback', ledger.path.parent)} --to e{epochs}"
        )
    if epochs < begun:
        differ.append(f"{epochs} epochs are to be trained, and {begun} have begun")
    _refuse(differ, ledger, spec)


def _refuse(differ: list[str], ledger: Ledger, spec: RunSpec) -> None:
    """Raise LedgerError if the program, data or settings differ from those that the run began with."""
    if differ:
        shown = [*differ[:MAX_SHOWN], *([f"{len(differ) - MAX_SHOWN} more"] if len(differ) > MAX_SHOWN else [])]
        raise LedgerError(
            f"{spec.settings.program} is not what {ledger.path.parent} was begun with: {'; '.join(shown)}. Resume it "
            f"with the data, the program and the seed (in settings.json and its copy) that it had, or start another "
            f"with gridml run."
        )


def _opened(ledger: Ledger, spec: RunSpec, directory: RunDirectory, now: float, *, durable: bool) -> Store:
    versions = Versions(directory.versions, durable=durable)
    newest_file = versions.newest_file()
    ledger.take_over(now, newest_file)
    replica = Replica(spec.graph, versions)
    replica.load(*ledger.newest_version(), ledger.next_version)
    _refuse(tensor_differences(spec.graph, replica.state), ledger, spec)
    bsp, phases = spec.program.consistency.is_bsp, spec.program.shape.has_phases
    fields = LocalFields(spec.graph, directory.fields, bsp=bsp, phases=phases, durable=durable)
    with ledger.transaction():  # the write lock keeps another master from making the same files
        fields.show(ledger.base(), ledger.patches())
    if not ledger.get("undone", False):
        return Store(ledger, versions, replica, fields)
    # The ledger is older than the files: later masters may have removed versions that it still names.
    gone = [version for version in ledger.saved_versions if not versions.has(version)]
    with ledger.transaction():
        for version in gone:
            ledger.drop_version(version)
    again = (versions.credited_in(newest_file) or 0) - ledger.credited
    return Store(ledger, versions, replica, fields, max(0, again))
