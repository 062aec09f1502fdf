"""Which part of the graph each vertex of a run stands in."""
