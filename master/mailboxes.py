"""The master's mailboxes of a run, with whatever server and keys its carrier takes."""

from __future__ import annotations

import pkgutil

from gridml.carriers.base import MasterMailboxes
from gridml.carriers.registry import CARRIERS
from gridml.errors import RunError
from master.store.rundir import RunDirectory
from master.store.settings import Settings


def run_mailboxes(settings: Settings, directory: RunDirectory) -> MasterMailboxes:
    """Return the mailboxes that the run's carrier serves from now on, until they are stopped.

    Raises RunError where the carrier's server cannot be had.
    """
    carrier = CARRIERS.find(settings.carrier)
    try:
        make = pkgutil.resolve_name(carrier.mailboxes)
    except ImportError as error:
        modules = " and ".join(carrier.modules) or carrier.mailboxes
        raise RunError(
            f"--carrier {carrier.name} takes {modules}, which cannot be imported ({error}). Install it: "
            f"{carrier.install}"
        ) from error
    address = (settings.address,) if carrier.has_address else ()
    mailboxes: MasterMailboxes = make(directory.root, *address)
    return mailboxes


def check_carrier(settings: Settings) -> None:
    """Raise RunError where this machine lacks what the run's carrier takes."""
    carrier = CARRIERS.find(settings.carrier)
    if missing := carrier.missing_modules():
        raise RunError(
            f"--carrier {carrier.name} takes {' and '.join(missing)}, which is not installed. Install it: "
            f"{carrier.install}"
        )
