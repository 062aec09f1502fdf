"""What a commit writes, and a master reads first: ledger, replica, fields of local vertices."""

from __future__ import annotations

from dataclasses import dataclass

from gridml.errors import LedgerError
from master.store.ledger import Ledger
from master.store.local_fields import LocalFields
from master.store.replica import Replica
from master.store.rundir import RunDirectory
from master.store.spec import RunSpec
from master.store.versions import Versions


@dataclass(frozen=True)
class Store:
    """The three parts of a run's state. They agree with one another at every commit of the ledger."""

    ledger: Ledger
    versions: Versions
    replica: Replica
    fields: LocalFields


def open_store(spec: RunSpec, directory: RunDirectory, *, durable: bool) -> Store:
    """Bring ledger, replica and fields to where the last commit left them.

    Raises LedgerError when one of them is damaged or missing, or the graph is not the one that the run was begun with.
    """
    ledger = Ledger(directory.ledger, shared_disk=directory.on_network_disk() is not None, durable=durable)
    if ledger.get("fingerprint") != spec.graph.fingerprint():
        raise LedgerError(
            f"the graph of {spec.settings.program} is not the one that {directory.root} was begun with: "
            f"{spec.graph.fingerprint()} against {ledger.get('fingerprint')}. Start a new run for it."
        )
    version, sha256 = ledger.newest_version()
    versions = Versions(directory.versions, durable=durable)
    replica = Replica(spec.graph, versions)
    replica.load(version, sha256)
    fields = LocalFields(spec.graph, directory.fields, bsp=spec.program.bsp, durable=durable)
    fields.recover(ledger.patches())
    return Store(ledger, versions, replica, fields)
