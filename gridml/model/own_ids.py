"""Own ids of vertices: whole numbers or texts by which the user knows them, such as words, or the numbers in a file.

gridml itself numbers the vertices of a type from 0, in the order of `Graph.add`. Own ids are kept beside these numbers:
they come with the results of a run (`gridml.load`), and edges may name their targets by them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.errors import ProgramError

OwnIds = NDArray[Any]  # int64 (count,), or texts (count,)
MAX_ID_CHARS = 1_000  # numpy gives each text of an array the length of the longest
_EXPECTED = "expected whole numbers or texts, one for each vertex and all different"


def own_ids(type_name: str, given: NDArray[Any]) -> OwnIds:
    """Return the ids of a type's vertices. Raises ProgramError, naming the type, unless they are whole numbers below
    2**63 or texts of at most `MAX_ID_CHARS`, all different."""
    values = given.astype(np.int64) if given.shape == (0,) else given  # numpy makes an empty list float64
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        got = f"{values.dtype} of shape {values.shape}"
        raise ProgramError(f"graph.add({type_name}, ...) got {got} as ids; {_EXPECTED}.")
    if values.dtype.kind == "U" and values.dtype.itemsize > np.dtype(f"U{MAX_ID_CHARS}").itemsize:
        raise ProgramError(
            f"graph.add({type_name}, ...) got an id of {values.dtype.itemsize // 4:,} characters; expected at most "
            f"{MAX_ID_CHARS:,}. Put long texts into a field, gridml.string()."
        )
    if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
        raise ProgramError(f"graph.add({type_name}, ...) got the id {values.max()}; expected ids below 2**63.")
    values = values if values.dtype.kind == "U" else values.astype(np.int64)
    ascending = np.sort(values)
    same = np.flatnonzero(ascending[1:] == ascending[:-1])
    if len(same):
        raise ProgramError(f"graph.add({type_name}, ...) got the id {ascending[same[0]].item()!r} twice; {_EXPECTED}.")
    return values


def joined_ids(type_name: str, first: OwnIds | None, second: OwnIds | None) -> OwnIds | None:
    """Return the ids of the vertices of two calls. Raises ProgramError if one call gave ids and the other did not, if
    they are of different kinds, or if both have an id."""
    if first is None and second is None:
        return None
    if first is None or second is None or first.dtype.kind != second.dtype.kind:
        raise ProgramError(
            f"graph.add({type_name}, ...) got ids of some vertices, or of two kinds; expected those of all, as whole "
            f"numbers or as texts."
        )
    return own_ids(type_name, np.concatenate([first, second]))


def positions(field: str, target: str, ids: OwnIds | None, wanted: OwnIds) -> NDArray[np.int64]:
    """Return the numbers of the vertices that have the texts `wanted` (m,) as ids. Raises ProgramError, naming the edge
    field, for an id that no vertex of the type `target` has."""
    if ids is None or ids.dtype.kind != "U":
        raise ProgramError(
            f"{field} names its targets by texts, and {target} vertices have no texts as ids. Add them before, with "
            f"graph.add({target}, ..., ids=...), or give their numbers, from 0."
        )
    order = np.argsort(ids)
    at = np.minimum(np.searchsorted(ids, wanted, sorter=order), max(0, len(ids) - 1))
    found = order[at] if len(ids) else np.zeros(len(wanted), np.int64)
    wrong = np.flatnonzero(ids[found] != wanted) if len(ids) else np.arange(len(wanted))
    if len(wrong):
        raise ProgramError(
            f"{field} leads to {target} {wanted[wrong[0]].item()!r}, an id that none of the {len(ids):,} {target} "
            f"vertices has ({len(wrong):,} of {len(wanted):,} edges do so). Add these vertices, or leave the edges out."
        )
    return found.astype(np.int64)
