"""What f's failure on a batch is called, and the vertices that it failed on."""

from __future__ import annotations


class BatchFailed(Exception):
    """f raised on a batch that begins with vertex `first` and ends with `last` (indices in the graph), one vertex where
    it fails on that alone; the error is the cause."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(f"f failed on vertices {first} to {last}")
        self.first = first
        self.last = last

    def named(self, driver: str) -> str:
        """Say which vertices these are."""
        return vertices_named(driver, self.first, self.last)


def vertices_named(driver: str, first: int, last: int) -> str:
    """Name the vertices of a batch, which need not be in the order of their numbers."""
    if first == last:
        return f"{driver} {first}"
    return f"{driver} {first} to {last}" if first < last else f"{driver} {first}, ..., {last}"
