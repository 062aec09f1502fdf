"""Placement: assigns the vertices of a run to parts of the graph."""
