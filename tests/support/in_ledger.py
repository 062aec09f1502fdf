"""Rows of a ledger that tests look at, and no master asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from master.store.ledger import Ledger
from master.store.ledger_rows import by_name


def credits_of(ledger: Ledger) -> Iterator[tuple[int, int, int]]:
    """Yield (epoch, start, stop) of every credit, in the order of commits."""
    return iter(ledger._db.execute("SELECT epoch, start, stop FROM credits ORDER BY rowid"))


def epochs_of(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the rows of all epochs, by column."""
    return by_name(ledger._db.execute("SELECT * FROM epochs ORDER BY epoch"))
