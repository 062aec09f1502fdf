"""The training engine of a worker: runs f over a chunk, on this process's replica."""
