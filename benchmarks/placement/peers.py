"""Other partitioners on the graphs of `benchmarks.placement`, if they are installed; all are optional.

Each returns the part of each row. Columns are then assigned by gridml's own sweeps, for all partitioners alike.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.placement import zoltan as phg
from gridml.placement.base import Parts
from gridml.placement.bipartite import Bipartite

IMBALANCE = 0.03  # allowed for each


def metis(graph: Bipartite, parts: int, seed: int) -> Parts:
    """Partition by METIS on the bipartite graph, with weightless columns. It minimises cut edges, not held columns."""
    pymetis: Any = importlib.import_module("pymetis")
    columns = graph.transposed
    starts = np.concatenate([graph.offsets, graph.edges + columns.offsets[1:]])
    neighbours = np.concatenate([graph.neighbours + graph.rows, columns.neighbours])
    weights = np.concatenate([np.ones(graph.rows, np.int64), np.zeros(graph.columns, np.int64)])
    options = pymetis.Options(seed=seed, ufactor=int(1000 * IMBALANCE))
    _, found = pymetis.part_graph(
        parts, xadj=starts.tolist(), adjncy=neighbours.tolist(), vweights=weights.tolist(), options=options
    )
    return np.asarray(found[: graph.rows], np.int32)


def mt_kahypar(graph: Bipartite, parts: int, seed: int) -> Parts:
    """Partition the hypergraph of columns by Mt-KaHyPar's default. It minimises the sum over columns of the parts that
    touch them, minus one each."""
    mtkahypar: Any = importlib.import_module("mtkahypar")
    mtk = mtkahypar.initialize(int(os.environ.get("PEER_THREADS", "1")))
    context = mtk.context_from_preset(mtkahypar.PresetType.DEFAULT)
    context.set_partitioning_parameters(parts, IMBALANCE, mtkahypar.Objective.KM1)
    context.logging = False
    mtkahypar.set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.hgr"
        nets = _nets(graph)
        file.write_text("\n".join([f"{len(nets)} {graph.rows}", *nets, ""]))
        hypergraph = mtk.hypergraph_from_file(str(file), context, mtkahypar.FileFormat.HMETIS)
    found = hypergraph.partition(context)
    return np.array([found.block_id(row) for row in range(graph.rows)], np.int32)


def kahypar(graph: Bipartite, parts: int, seed: int) -> Parts:
    """Partition the same hypergraph by KaHyPar, for the same objective. Its package lacks the required settings file:
    KAHYPAR_INI names one, such as config/km1_kKaHyPar_sea20.ini of its sources."""
    kahypar: Any = importlib.import_module("kahypar")
    context = kahypar.Context()
    context.loadINIconfiguration(os.environ["KAHYPAR_INI"])
    context.setK(parts)
    context.setEpsilon(IMBALANCE)
    context.setSeed(seed)
    context.suppressOutput(True)
    columns = graph.transposed
    used = columns.degrees > 0
    starts = np.concatenate([[0], np.cumsum(columns.degrees[used])])
    hypergraph = kahypar.Hypergraph(graph.rows, int(used.sum()), starts.tolist(), columns.neighbours.tolist(), parts)
    kahypar.partition(hypergraph, context)
    return np.array([hypergraph.blockID(row) for row in range(graph.rows)], np.int32)


def zoltan(graph: Bipartite, parts: int, seed: int) -> Parts:
    """Partition the same hypergraph by Zoltan's PHG."""
    return phg.zoltan(graph, parts, IMBALANCE, seed)


def patoh(graph: Bipartite, parts: int, seed: int) -> Parts:
    """Partition the same hypergraph by PaToH's program, for the same objective, with its preset of best quality."""
    program = patoh_program()
    assert program is not None, "PEERS has it only if it is installed"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.u"
        nets = _nets(graph)
        file.write_text("\n".join([f"1 {graph.rows} {len(nets)} {graph.edges}", *nets, ""]))
        asked = ["UM=O", "PQ=Q", "BO=C", "WI=1", f"FI={IMBALANCE}", f"SD={seed + 1}"]
        subprocess.run([program, str(file), str(parts), *asked], check=True, capture_output=True, timeout=900)
        found = np.array(Path(f"{file}.part.{parts}").read_text().split(), np.int32)
    if found.shape != (graph.rows,) or not 0 <= found.min() <= found.max() < parts:
        raise RuntimeError(f"PaToH wrote {len(found)} parts for {graph.rows} rows")
    return found


def patoh_program() -> str | None:
    """Return PaToH's program: `patoh` in the PATH, or what PATOH names; None if it is not installed. It is not open
    source: https://faculty.cc.gatech.edu/~umit/software.html."""
    return shutil.which(os.environ.get("PATOH", "patoh"))


def _nets(graph: Bipartite) -> list[str]:
    """Return a line for each column that a row touches: the rows, counted from 1."""
    columns = graph.transposed
    lists = np.split(columns.neighbours + 1, columns.offsets[1:-1])
    return [" ".join(map(str, each.tolist())) for each in lists if len(each)]


_ALL: dict[str, tuple[str, Callable[[Bipartite, int, int], Parts]]] = {
    "METIS": ("pymetis", metis),
    "Mt-KaHyPar": ("mtkahypar", mt_kahypar),
    "KaHyPar": ("kahypar", kahypar),
}
PEERS = {
    name: place
    for name, (module, place) in _ALL.items()
    if find_spec(module) is not None and (name != "KaHyPar" or "KAHYPAR_INI" in os.environ)
}
if phg.library() is not None:
    PEERS["Zoltan"] = zoltan
if patoh_program() is not None:
    PEERS["PaToH"] = patoh
ALL_PEERS = (*_ALL, "Zoltan", "PaToH")  # including those that are not installed
