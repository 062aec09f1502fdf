"""Train models on machines that come and go.

A program is one Python file: vertex types, what one vertex does (f), how two replicas of a shared vertex merge (g).
"""

from gridml import datasets
from gridml.aggregates import Aggregate, Merge, add, by_name, easgd, fedbuff, maximum, mean, nesterov, stale_mean
from gridml.batch import Batch, Neighbours
from gridml.graph import Graph, VertexSet, csr
from gridml.program import Program, constant, linear_decay, update
from gridml.vertex import Vertex, VertexId, array, edge, module

__all__ = [
    "Aggregate",
    "Batch",
    "Graph",
    "Merge",
    "Neighbours",
    "Program",
    "Vertex",
    "VertexId",
    "VertexSet",
    "add",
    "array",
    "by_name",
    "constant",
    "csr",
    "datasets",
    "easgd",
    "edge",
    "fedbuff",
    "linear_decay",
    "maximum",
    "mean",
    "module",
    "nesterov",
    "stale_mean",
    "update",
]
