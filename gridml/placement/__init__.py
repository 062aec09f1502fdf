"""Data placed so that few parameters are replicated: which part each row of a bipartite graph goes to."""
