"""The costs of a training round: the bandwidth of this machine's loopback, and the seconds of an edge."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
from scipy.sparse import csr_array

from gridml.placement.bipartite import Bipartite

SENT = 64 << 20  # bytes
PASSES = 5


def loopback() -> float:
    """Return the bandwidth of a connection of this machine to itself in bytes per second, the best of three tries."""
    return max(_sent() for _ in range(3))


def edge_s(given: Bipartite) -> float:
    """Return the seconds of an edge in a round: a sparse matrix times a vector of its columns, and its transpose times
    a vector of its rows, as in the gradient of a linear model; the best of a few passes."""
    ones = np.ones(given.edges, np.float32)
    matrix = csr_array((ones, given.neighbours, given.offsets), shape=(given.rows, given.columns))
    model, best = np.ones(given.columns, np.float32), np.inf
    for _ in range(PASSES):
        begun = time.perf_counter()
        matrix.T @ (matrix @ model)
        best = min(best, time.perf_counter() - begun)
    return float(best) / given.edges


def _sent() -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_send, args=server.getsockname())
        thread.start()
        connection, _ = server.accept()
        with connection:
            begun, left = time.perf_counter(), SENT
            while left:
                left -= len(connection.recv(min(left, 1 << 20)))
            elapsed = time.perf_counter() - begun
        thread.join()
    return SENT / elapsed


def _send(host: str, port: int) -> None:
    with socket.create_connection((host, port)) as connection:
        connection.sendall(bytes(SENT))
