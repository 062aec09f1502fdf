"""Zoltan's hypergraph partitioner, called in this process, if Debian's libtrilinos-zoltan and OpenMPI are installed.

ZOLTAN_LIBRARY and MPI_LIBRARY name them if they are elsewhere. MPI is initialised with a single process.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_float, c_int, c_uint, c_void_p
from ctypes.util import find_library
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.placement.base import Parts
from gridml.placement.bipartite import Bipartite

_Ids = POINTER(c_uint)
_Ints = POINTER(c_int)
_COUNT = CFUNCTYPE(c_int, c_void_p, _Ints)
_LIST = CFUNCTYPE(None, c_void_p, c_int, c_int, _Ids, _Ids, c_int, POINTER(c_float), _Ints)
_SIZE = CFUNCTYPE(None, c_void_p, _Ints, _Ints, _Ints, _Ints)
_PINS = CFUNCTYPE(None, c_void_p, c_int, c_int, c_int, c_int, _Ids, _Ints, _Ids, _Ints)
_BY_VERTEX = 2  # ZOLTAN_COMPRESSED_VERTEX
_ALONE = {"OMPI_MCA_btl": "self", "OMPI_MCA_ess_singleton_isolated": "1", "OMPI_MCA_pmix": "isolated"}


def library() -> str | None:
    """Return the file of Zoltan's library, None if it is not installed."""
    return os.environ.get("ZOLTAN_LIBRARY") or find_library("trilinos_zoltan")


def zoltan(graph: Bipartite, parts: int, imbalance: float, seed: int) -> Parts:
    """Return the part of each row, int32 (rows,), by PHG. It minimises the sum over columns of the parts that touch
    them, minus one each."""
    lib, world = _started()
    made = c_void_p(lib.Zoltan_Create(world))
    asked = {
        "DEBUG_LEVEL": "0",
        "LB_METHOD": "HYPERGRAPH",
        "HYPERGRAPH_PACKAGE": "PHG",
        "LB_APPROACH": "PARTITION",
        "NUM_GLOBAL_PARTS": str(parts),
        "IMBALANCE_TOL": str(1 + imbalance),
        "RETURN_LISTS": "PARTS",
        "SEED": str(seed + 1),
    }
    for name, value in asked.items():
        if lib.Zoltan_Set_Param(made, name.encode(), value.encode()):
            raise RuntimeError(f"Zoltan does not take {name} {value}")
    calls = _calls(graph)
    for place, call in calls.items():
        getattr(lib, f"Zoltan_Set_{place}_Fn")(made, call, None)
    changed, one, other = (c_int() for _ in range(3))
    came, went = c_int(), c_int()
    lists = [c_void_p() for _ in range(8)]
    failed = lib.Zoltan_LB_Partition(
        made, *map(ctypes.byref, (changed, one, other, came, *lists[:4], went, *lists[4:]))
    )
    if failed > 1 or went.value != graph.rows:
        raise RuntimeError(f"Zoltan ended with {failed}, and {went.value} of {graph.rows} rows")
    rows = np.ctypeslib.as_array(ctypes.cast(lists[4], _Ids), (graph.rows,))
    to = np.ctypeslib.as_array(ctypes.cast(lists[7], _Ints), (graph.rows,))
    found = np.empty(graph.rows, np.int32)
    found[rows] = to
    return found


def _calls(graph: Bipartite) -> dict[str, Any]:
    """Return Zoltan's query functions: the rows, which are its vertices, and the columns of each, which are its
    hyperedges."""

    def list_rows(_: Any, __: int, ___: int, ids: Any, *rest: Any) -> None:
        _fill(ids, np.arange(graph.rows, dtype=np.uint32))

    def sizes(_: Any, lists: Any, pins: Any, form: Any, failed: Any) -> None:
        lists[0], pins[0], form[0], failed[0] = graph.rows, graph.edges, _BY_VERTEX, 0

    def pins(  # the arguments are those that Zoltan calls it with
        _: Any, __: int, ___: int, ____: int, _____: int, ids: Any, starts: Any, columns: Any, failed: Any
    ) -> None:
        _fill(ids, np.arange(graph.rows, dtype=np.uint32))
        _fill(starts, graph.offsets[:-1].astype(np.int32))
        _fill(columns, graph.neighbours.astype(np.uint32))
        failed[0] = 0

    def count(_: Any, failed: Any) -> int:
        failed[0] = 0
        return graph.rows

    return {"Num_Obj": _COUNT(count), "Obj_List": _LIST(list_rows), "HG_Size_CS": _SIZE(sizes), "HG_CS": _PINS(pins)}


def _fill(to: Any, values: NDArray[Any]) -> None:
    np.ctypeslib.as_array(to, values.shape)[:] = values


@cache
def _started() -> tuple[Any, int]:
    """Initialise MPI and Zoltan once. Return Zoltan's library, and the address of MPI_COMM_WORLD."""
    os.environ.update({name: value for name, value in _ALONE.items() if name not in os.environ})
    mpi = ctypes.CDLL(os.environ.get("MPI_LIBRARY") or find_library("mpi"), ctypes.RTLD_GLOBAL)
    mpi.MPI_Init(None, None)
    lib = ctypes.CDLL(library())
    lib.Zoltan_Create.restype = c_void_p
    lib.Zoltan_Create.argtypes = [c_void_p]
    lib.Zoltan_Set_Param.argtypes = [c_void_p, c_char_p, c_char_p]
    for place in ("Num_Obj", "Obj_List", "HG_Size_CS", "HG_CS"):
        getattr(lib, f"Zoltan_Set_{place}_Fn").argtypes = [c_void_p, c_void_p, c_void_p]
    version = c_float()
    lib.Zoltan_Initialize(0, None, ctypes.byref(version))
    return lib, ctypes.addressof(c_char.in_dll(mpi, "ompi_mpi_comm_world"))
