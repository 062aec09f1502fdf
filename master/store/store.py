"""What a commit writes, and a master reads first: ledger, replica, fields of local vertices."""

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

MAX_SHOWN = 8  # differences that are named one by one


@dataclass(frozen=True)
class Store:
    """The three parts of a run's state. They agree with one another at every commit of the ledger.

    `undone` are the vertices that were credited in a ledger newer than this one, None where there was none.
    """

    ledger: Ledger
    versions: Versions
    replica: Replica
    fields: LocalFields
    undone: int | None = None

    def sweep(self) -> None:
        """Remove files that neither the ledger nor its copy names: of commits that were not made, or are undone."""
        self.versions.sweep({*self.ledger.saved_versions, *self.ledger.copied_versions})
        self.fields.sweep(self.ledger.base(), self.ledger.patches())


def open_store(spec: RunSpec, directory: RunDirectory, ledger: Ledger, now: float, *, durable: bool) -> Store:
    """Take the ledger over, and bring replica and fields to where its last commit left them.

    Raises LedgerError when one of them is damaged or missing, or data or settings are not those that the run was begun
    with; before the ledger is taken over, as far as it alone can tell.
    """
    with translate_errors(directory.root):
        ledger.count_credits()
        _check_identity(ledger, spec)
        return _opened(ledger, spec, directory, now, durable=durable)


def _check_identity(ledger: Ledger, spec: RunSpec) -> None:
    differ = differences(ledger.get("identity", {}), identity(spec))
    epochs, begun = spec.settings.epochs or spec.program.epochs, ledger.newest_epoch()[0] + 1
    if epochs < begun and spec.settings.epochs is not None:
        raise UsageError(
            f"epochs is {epochs}, and {begun} of {ledger.path.parent} have begun; expected {begun} or more. To take "
            f"the run back to the end of an earlier one: {command('rollback', ledger.path.parent)} --to e{epochs}"
        )
    if epochs < begun:
        differ.append(f"{epochs} epochs are to be trained, and {begun} have begun")
    _refuse(differ, ledger, spec)


def _refuse(differ: list[str], ledger: Ledger, spec: RunSpec) -> None:
    """Raise LedgerError where a run is to go on as another."""
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
    fields = LocalFields(spec.graph, directory.fields, bsp=spec.program.bsp, durable=durable)
    with ledger.transaction():  # nobody else makes files meanwhile
        fields.show(ledger.base(), ledger.patches())
    if not ledger.get("undone", False):
        return Store(ledger, versions, replica, fields)
    gone = [version for version in ledger.saved_versions if not versions.has(version)]
    with ledger.transaction():
        for version in gone:
            ledger.drop_version(version)
    again = (versions.credited_in(newest_file) or 0) - ledger.credited
    return Store(ledger, versions, replica, fields, max(0, again))
