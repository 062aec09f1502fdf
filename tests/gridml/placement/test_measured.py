"""The measured quality of a placement."""

from __future__ import annotations

import numpy as np

from gridml.placement.auto import find
from gridml.placement.base import Options, Placement
from gridml.placement.bipartite import Bipartite
from gridml.placement.quality import improvement, measure, traffic

# Two groups of rows with disjoint columns: the placement by hand has no traffic.
GRAPH = Bipartite.from_edges(np.repeat(np.arange(40), 5), (np.arange(200) % 5) + 5 * (np.arange(200) // 5 % 2))


class ByHand:
    name = "by-hand"

    def place(self, graph: Bipartite, parts: int, options: Options) -> Placement:
        return Placement(parts, (np.arange(40) % 2).astype(np.int32), (np.arange(10) // 5).astype(np.int32), "known")


def test_what_is_said_is_what_traffic_counts() -> None:
    placement, quality = measure(ByHand(), GRAPH, 2, Options(seed=3, slack=0.5))
    said = quality.to_json()
    chance = traffic(GRAPH, find("random").place(GRAPH, 2, Options(seed=3)))
    assert placement.why == said["why"] == "known" and said["method"] == "by-hand"
    assert (said["parts"], said["rows"], said["columns"], said["edges"]) == (2, 40, 10, 200)
    assert (said["seed"], said["slack"], said["balance"]) == (3, 0.5, 1.0)
    assert (said["M_max"], said["T_max"], said["T_sum"]) == (5, 0, 0)
    assert said["M_max_random"] == chance.largest_memory and said["T_sum_random"] == chance.total_traffic > 0
    assert said["M_max_improvement"] == improvement(chance.largest_memory, 5) == 100.0
    assert said["T_max_improvement"] == said["T_sum_improvement"] == float("inf")
    assert 0 <= said["seconds"] < 60 and 10 < said["peak_mb"] < 100_000
