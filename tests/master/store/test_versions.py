"""A version is restored from its file, with the buffers of merge rules and the versions of changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gridml
from gridml.aggregates import VertexState
from gridml.errors import ProgramError
from master.store.versions import ReplicaState, Versions, initial

torch = pytest.importorskip("torch")


def state() -> ReplicaState:
    name = "Network/1/model/0.weight"
    buffers = {name: {"step": np.ones((2, 3), np.float32), "pushes": np.array(4)}}
    return ReplicaState(
        {
            ("Network", 1): VertexState({name: np.zeros((2, 3), np.float16)}, buffers),
            ("Network", 0): VertexState({"Network/0/a/b/c": np.arange(2)}),
        },
        {"Word": {"count": np.arange(5), "vector": np.zeros((5, 2))}},
        {"Network": np.array([0, 7]), "Word": np.arange(5)},
    )


def test_a_version_is_read_as_it_was_written(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "versions")
    written = state()
    read = versions.read(7, versions.write(7, written))
    assert read.modules.keys() == written.modules.keys()
    for mine, theirs in ((read.tensors(), written.tensors()), (read.buffers(), written.buffers())):
        mine, theirs = dict(mine), dict(theirs)
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert mine[name].dtype == tensor.dtype
            np.testing.assert_array_equal(mine[name], tensor)
    assert {name: ids.tolist() for name, ids in read.changed.items()} == {"Network": [0, 7], "Word": [0, 1, 2, 3, 4]}
    assert read.nbytes == 2 * 3 * 2 + 2 * 8 + 5 * 8 + 10 * 8 + 6 * 4 + 8


def test_the_names_of_tensors_and_of_buffers_are_those_of_files() -> None:
    assert {name for name, _ in state().tensors()} == {
        "Network/1/model/0.weight",
        "Network/0/a/b/c",
        "Word/count",
        "Word/vector",
    }
    assert {name for name, _ in state().buffers()} == {
        "Network/1/model/0.weight#step",
        "Network/1/model/0.weight#pushes",
    }


def test_a_tensor_that_looks_like_a_buffer_is_refused() -> None:
    def odd() -> object:
        module = torch.nn.Module()
        module.register_parameter("a#b", torch.nn.Parameter(torch.zeros(2)))
        return module

    class Odd(gridml.Vertex):
        model = gridml.module(odd)

    graph = gridml.Graph()
    graph.add(Odd)
    with pytest.raises(ProgramError, match="'Odd/0/model/a#b' has '#'"):
        initial(graph, 0)
