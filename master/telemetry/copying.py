"""What it takes to copy vertices: bytes of a vertex in a chunk, and the master's seconds per byte and per chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

REMEMBERED = 64  # chunks
BYTE_S = 1e-8  # seconds for a byte, where measures cannot tell it from what is alike for every chunk: 100 MB/s
_FADING = 0.9  # bytes are weighed over the last ten chunks or so


def line(points: Sequence[tuple[float, float]], usual: float = 0.0) -> tuple[float, float]:
    """(t_s, t_c) of the points (n, seconds): the least squares of t_s + n·t_c, neither negative.

    Where all n are alike, or more take less time, they cannot be told apart: t_c is then as `usual`, as far as that
    explains the seconds, and the rest is t_s. (0, 0) without points.
    """
    if not points:
        return 0.0, 0.0
    mean_n = sum(n for n, _ in points) / len(points)
    mean_s = sum(s for _, s in points) / len(points)
    spread = sum((n - mean_n) ** 2 for n, _ in points)
    slope = 0.0
    if spread > 1e-6 * mean_n**2 * len(points):
        slope = sum((n - mean_n) * (s - mean_s) for n, s in points) / spread
    if slope <= 0:
        slope = min(usual, mean_s / mean_n) if mean_n > 0 else 0.0
        return max(0.0, mean_s - slope * mean_n), slope
    if mean_s - slope * mean_n < 0:
        return 0.0, sum(n * s for n, s in points) / sum(n * n for n, _ in points)
    return mean_s - slope * mean_n, slope


class Copying:
    """One master's measures. `vertex_bytes` are guessed from the graph until chunks were cut."""

    def __init__(self, vertex_bytes: float = 0.0) -> None:
        self.vertex_bytes = vertex_bytes
        self._vertices = self._bytes = 0.0  # of late
        self.nbytes = 0  # of all chunks
        self._grants: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)  # (bytes, seconds)

    @property
    def vertex_s(self) -> float:
        """Seconds for a vertex, where they were not measured."""
        return self.vertex_bytes * BYTE_S

    @property
    def grant_s(self) -> float:
        """The master's seconds for a lease, however large it is: those for its bytes are not among them."""
        return line(self._grants, BYTE_S)[0]

    def cut(self, vertices: int, nbytes: int) -> None:
        """Take note of a chunk that was cut."""
        if not nbytes:
            return  # none travels
        self.nbytes += nbytes
        self._vertices = _FADING * self._vertices + vertices
        self._bytes = _FADING * self._bytes + nbytes
        self.vertex_bytes = self._bytes / self._vertices

    def grant(self, leases: int, nbytes: int, seconds: float) -> None:
        """Take note of what it took the master to grant so many leases, with so many bytes of chunks."""
        if leases:
            self._grants.append((nbytes / leases, seconds / leases))
