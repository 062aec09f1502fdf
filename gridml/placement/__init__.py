"""Placement of data: assigns the rows of a bipartite graph to parts so that few parameters are replicated."""
