"""Readers of graph files: each format is read into a `Bipartite`."""
