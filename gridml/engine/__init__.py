"""Runs f over a chunk, on this process's replica."""
