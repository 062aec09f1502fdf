"""Merge rules: they merge the replicas of a shared vertex into one value (the paper's g).

A program names a rule by its constructor, `aggregate = gridml.stale_mean()`, or several with `by_name`.
"""

from gridml.aggregates.averages import Clipped, Easgd, FedBuff, Mean, Nesterov, Rounds, StaleMean
from gridml.aggregates.base import Aggregate, Companion, Contraction, Merge, TensorMerge, Tensors
from gridml.aggregates.rule_set import (
    ByName,
    MergeResult,
    RuleSet,
    VertexState,
    by_name,
    is_chosen,
    is_weight,
    rule_for,
)
from gridml.aggregates.sums import Add, Maximum, Owned, Pooled

add = Add
clipped = Clipped
easgd = Easgd
fedbuff = FedBuff
maximum = Maximum
mean = Mean
nesterov = Nesterov
owned = Owned
pooled = Pooled
rounds = Rounds
stale_mean = StaleMean

__all__ = [
    "Aggregate",
    "ByName",
    "Clipped",
    "Companion",
    "Contraction",
    "Merge",
    "MergeResult",
    "RuleSet",
    "TensorMerge",
    "Tensors",
    "VertexState",
    "add",
    "by_name",
    "clipped",
    "easgd",
    "fedbuff",
    "is_chosen",
    "is_weight",
    "maximum",
    "mean",
    "nesterov",
    "owned",
    "pooled",
    "rounds",
    "rule_for",
    "stale_mean",
]
