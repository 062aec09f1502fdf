"""The facts of an event: the numbers and names that its text is made of, for programs. docs/events.md has them by
topic."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

from gridml.protocol.text import NAME, printable

EventFacts = Mapping[str, Any]  # JSON values by name
NO_FACTS: EventFacts = MappingProxyType({})
MOST = 64  # parts of a mapping, or of a list
LONGEST = 500  # characters of a text


def bounded(facts: EventFacts) -> dict[str, Any]:
    """Return facts as everybody reads them, whichever way: texts print and are short, what has too many parts lacks the
    last ones, and what JSON has no number for, NaN and infinity, is None. Idempotent."""
    return {printable(name, NAME): _bounded(value) for name, value in islice(facts.items(), MOST)}


def facts_text(facts: EventFacts) -> str:
    """Return facts as a column of the ledger holds them."""
    return json.dumps(bounded(facts), allow_nan=False)


def facts_from(text: str) -> EventFacts:
    """Return the facts that a column holds. Raises ValueError for what is no JSON object."""
    facts = json.loads(text)
    if not isinstance(facts, dict):
        raise ValueError(f"the facts of an event are {type(facts).__name__}, expected an object")
    return facts


def _bounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return bounded(value)
    if isinstance(value, list | tuple):
        return [_bounded(part) for part in value[:MOST]]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else printable(str(value), LONGEST)
