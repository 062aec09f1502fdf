"""Train models on machines that come and go.

A program is one Python file: vertex types, a function for one vertex (f), and a rule that merges two replicas of a
shared vertex (g). Functions that start runs (`run`, `load` and others, docs/python.md) are imported on first use, since
workers are installed without the master.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridml import datasets
from gridml.aggregates import Aggregate, Merge, TensorMerge, by_name
from gridml.aggregates.averages import Clipped as clipped
from gridml.aggregates.averages import Easgd as easgd
from gridml.aggregates.averages import FedBuff as fedbuff
from gridml.aggregates.averages import Mean as mean
from gridml.aggregates.averages import Nesterov as nesterov
from gridml.aggregates.averages import Rounds as rounds
from gridml.aggregates.averages import StaleMean as stale_mean

# The public name of a rule is the name of its class in lower case.
from gridml.aggregates.sums import Add as add
from gridml.aggregates.sums import Maximum as maximum
from gridml.aggregates.sums import Owned as owned
from gridml.datasets.map_style import from_huggingface, from_torch
from gridml.engine.update_runner import log
from gridml.model import counters
from gridml.model.batch import Batch, Neighbours
from gridml.model.edge_list import edge_list, signs
from gridml.model.graph import Graph, VertexSet, csr
from gridml.model.own_imports import protect_gridml_packages
from gridml.model.program import EarlyStopping, Program, early_stopping
from gridml.model.ragged import Lists, Ragged, ragged, string
from gridml.model.samples import sample
from gridml.model.schedule import Progress, by_step, constant, linear_decay, torch_schedule, warmup
from gridml.model.stage_fields import accumulator, counter, derived, scratch
from gridml.model.stages import Link, Links, MiniBatch, apply, exchange, global_sync, uniform
from gridml.model.update import update
from gridml.model.vertex import Vertex, VertexId, array, edge, module

if TYPE_CHECKING:
    from gridml.api.computing import Computed as Computed
    from gridml.api.computing import compute as compute
    from gridml.api.graph_files import graph_from as graph_from
    from gridml.api.handle import Event as Event
    from gridml.api.handle import Run as Run
    from gridml.api.handle import load as load
    from gridml.api.inferring import infer as infer
    from gridml.api.run_calls import launch as launch
    from gridml.api.run_calls import resume as resume
    from gridml.api.run_calls import run as run
    from gridml.api.run_calls import submit as submit
    from gridml.api.simulating import simulate as simulate
    from gridml.api.tables import export as export
    from gridml.api.tables import table as table

# Names that are imported on first use, each with its module in `gridml.api`. They are not in `__all__`, because
# `from gridml import *` must work on a worker, which has no master.
_CALLS = dict.fromkeys(("Event", "Run", "load"), "handle")
_CALLS |= dict.fromkeys(("launch", "resume", "run", "submit"), "run_calls")
_CALLS |= {"simulate": "simulating", "infer": "inferring", "graph_from": "graph_files"}
_CALLS |= dict.fromkeys(("Computed", "compute"), "computing")
_CALLS |= dict.fromkeys(("table", "export"), "tables")

__all__ = [
    "Aggregate",
    "Batch",
    "EarlyStopping",
    "Graph",
    "Link",
    "Links",
    "Lists",
    "Merge",
    "MiniBatch",
    "Neighbours",
    "Program",
    "Progress",
    "Ragged",
    "TensorMerge",
    "Vertex",
    "VertexId",
    "VertexSet",
    "accumulator",
    "add",
    "apply",
    "array",
    "by_name",
    "by_step",
    "clipped",
    "constant",
    "counter",
    "counters",
    "csr",
    "datasets",
    "derived",
    "early_stopping",
    "easgd",
    "edge",
    "edge_list",
    "exchange",
    "fedbuff",
    "from_huggingface",
    "from_torch",
    "global_sync",
    "linear_decay",
    "log",
    "maximum",
    "mean",
    "module",
    "nesterov",
    "owned",
    "ragged",
    "rounds",
    "sample",
    "scratch",
    "signs",
    "stale_mean",
    "string",
    "torch_schedule",
    "uniform",
    "update",
    "warmup",
]


protect_gridml_packages()  # before any of these packages is imported


def __getattr__(name: str) -> Any:
    """Import a name of `_CALLS` on first use."""
    if name not in _CALLS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    protect_gridml_packages()  # again, because a script may have imported modules of the same names by now
    return getattr(import_module(f"{__name__}.api.{_CALLS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_CALLS})
