"""Weights in a NumPy file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridml.errors import UsageError
from gridml.placement.files.registry import read_weights


def test_an_array_is_read_as_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", [1.5, 2])
    assert read_weights(tmp_path / "a.npy").tolist() == [1.5, 2]


def test_what_is_no_array_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("1 2 3")
    np.savez(tmp_path / "two.npz", a=[1], b=[2])
    np.save(tmp_path / "objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    np.save(tmp_path / "whole.npy", np.arange(99))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:300])
    for name, said in {
        "text.npy": "text.npy is no .npy of numbers",
        "two.npz": "two.npz holds several arrays",
        "objects.npy": "objects.npy is no .npy of numbers",
        "cut.npy": "cut.npy is no .npy of numbers",
        "none.npy": "none.npy cannot be read: No such file",
        ".": "cannot be read: Is a directory",
    }.items():
        with pytest.raises(UsageError, match=said):
            read_weights(tmp_path / name)
