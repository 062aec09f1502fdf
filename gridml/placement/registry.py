"""The methods of placement by name: a new one is a file and a line here."""

from __future__ import annotations

from gridml.errors import UsageError
from gridml.placement.at_random import AtRandom
from gridml.placement.auto import Auto
from gridml.placement.base import Method
from gridml.placement.greedy import Greedy
from gridml.placement.mbp import Mbp
from gridml.placement.multilevel import Multilevel
from gridml.placement.parsa import Parsa
from gridml.placement.refined import Refined
from gridml.placement.tsh import Tsh

_ALL: tuple[Method, ...] = (
    AtRandom(),
    AtRandom(served=True),
    Greedy(),
    Parsa(),
    Refined(),
    Multilevel(),
    Tsh(),
    Mbp(),
    Auto(),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}


def find(name: str) -> Method:
    """Return a method. Raises UsageError for a name that none has."""
    if name not in METHODS:
        raise UsageError(f"there is no method of placement {name!r}; expected {', '.join(METHODS)}.")
    return METHODS[name]
