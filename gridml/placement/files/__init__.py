"""Graphs in files of other people's: one format a file, each read into a `Bipartite`."""
