"""Costs of copying: per byte, and per chunk of any size."""

from __future__ import annotations

import pytest

from master.telemetry.measures import BYTE_S, CopyCosts


def test_bytes_of_a_vertex_are_a_guess_until_chunks_were_cut() -> None:
    copying = CopyCosts(100.0)
    assert copying.vertex_bytes == 100.0
    copying.cut(10, 0)  # no chunk is sent
    assert copying.vertex_bytes == 100.0
    copying.cut(10, 5_000)
    assert copying.vertex_bytes == 500.0
    for _ in range(100):
        copying.cut(10, 20_000)  # rows of a list have many lengths
    assert copying.vertex_bytes == pytest.approx(2_000.0, rel=0.01)


def test_a_lease_costs_the_master_what_its_bytes_do_not_explain() -> None:
    copying = CopyCosts()
    assert copying.grant_s == 0.0
    for nbytes in (1_000_000, 100_000_000, 500_000_000):
        copying.grant(2, 2 * nbytes, 2 * (0.002 + 5e-9 * nbytes))
    assert copying.grant_s == pytest.approx(0.002)


def test_chunks_of_one_size_are_no_fixed_cost() -> None:
    """Otherwise a large chunk would lead to a larger one."""
    copying = CopyCosts()
    for _ in range(10):
        copying.grant(1, 500_000_000, 2.5)
    assert copying.grant_s == 0.0
    small = CopyCosts()
    for _ in range(10):
        small.grant(1, 1_000, 0.003)
    assert small.grant_s == pytest.approx(0.003 - 1_000 * BYTE_S)
