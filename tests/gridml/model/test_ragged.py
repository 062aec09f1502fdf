"""Fields of varying length: from the user's value through a chunk to f."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.format import open_memmap

import gridml
from gridml.engine.engine import Engine
from gridml.errors import ProgramError
from gridml.model.chunk import Chunk, ChunkTable, bytes_each, cut
from gridml.model.ragged import Ragged


class Total(gridml.Vertex):
    value = gridml.array("int64")
    aggregate = gridml.add()


class Sentence(gridml.Vertex):
    tokens = gridml.ragged("int32")
    track = gridml.ragged("float32", (2,))
    text = gridml.string()
    total = gridml.edge(Total)


def sentences(tokens: list[list[int]], texts: list[str] | None = None) -> gridml.Graph:
    graph = gridml.Graph()
    total = graph.add(Total, value=np.zeros(1, np.int64))
    tracks = [np.full((len(each) % 3, 2), len(each), np.float32) for each in tokens]
    graph.add(Sentence, tokens=tokens, track=tracks, text=texts or [f"№{each}" for each in tokens], total=total)
    return graph


@given(
    st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=1, max_size=8),
    st.data(),
)
def test_a_chunk_carries_what_its_vertices_have(tokens: list[list[int]], data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text(max_size=3), min_size=len(tokens), max_size=len(tokens)))
    vertices = np.array(data.draw(st.permutations(range(len(tokens)))))[: data.draw(st.integers(1, len(tokens)))]
    chunk = Chunk.decode(cut(sentences(tokens, texts), "Sentence", vertices, None, None, bsp=False).encode())
    columns = chunk.tables["Sentence"].ragged
    assert [columns["tokens"].one(at).tolist() for at in range(len(vertices))] == [tokens[v] for v in vertices]
    assert [columns["text"].one(at) for at in range(len(vertices))] == [texts[v] for v in vertices]
    assert [len(columns["track"].one(at)) for at in range(len(vertices))] == [len(tokens[v]) % 3 for v in vertices]
    assert columns["tokens"].values.dtype == np.int32


def seen_by(function: Any, batch: int | None, graph: gridml.Graph) -> None:
    program = gridml.Program(
        lambda: graph, gridml.update(function) if batch is None else gridml.update(batch=batch)(function)
    )
    engine = Engine(program)
    count = graph.tables["Sentence"].count
    engine.begin(cut(graph, "Sentence", np.arange(count), None, None, bsp=False))
    engine.train(0, count, 1.0)


def test_f_sees_a_batch_as_lists_and_as_a_pair() -> None:
    seen: list[Any] = []

    def f(batch: gridml.Batch[Sentence], total: Total) -> None:
        values, offsets = batch.tokens.values, batch.tokens.offsets
        seen.append((values.tolist(), offsets.tolist(), [t.tolist() for t in batch.tokens], batch.text))
        assert len(batch.tokens) == len(batch)
        assert batch.tokens[-1].tolist() == batch.tokens[len(batch) - 1].tolist()
        assert not values.flags.writeable
        total.value += len(values)

    seen_by(f, 2, sentences([[1, 2], [], [3]], ["a", "", "ü"]))
    assert seen == [([1, 2, 3], [0, 2, 2, 3], [[1, 2], [], [3]], ["a", "", "ü"])]


def test_f_sees_one_vertex_s_array_and_text() -> None:
    seen: list[Any] = []

    def f(sentence: Sentence, total: Total) -> None:
        seen.append((sentence.tokens.tolist(), sentence.text, sentence.track.shape))

    seen_by(f, None, sentences([[1, 2], []], ["a", "b"]))
    assert seen == [([1, 2], "a", (2, 2)), ([], "b", (0, 2))]


def test_f_does_not_write_them() -> None:
    def f(batch: gridml.Batch[Sentence], total: Total) -> None:
        batch.tokens = 3

    with pytest.raises(Exception) as caught:
        seen_by(f, 2, sentences([[1]]))
    assert "not changed by f" in str(caught.value.__cause__)


def test_a_second_add_joins_them() -> None:
    graph = sentences([[1, 2], [3]])
    graph.add(Sentence, tokens=[[4]], track=[[]], text=["end"], total=np.zeros(1, np.int64))
    column = graph.tables["Sentence"].ragged["tokens"]
    assert [column.one(at).tolist() for at in range(3)] == [[1, 2], [3], [4]]
    assert graph.tables["Sentence"].ragged["text"].one(2) == "end"


def test_values_on_the_disk_stay_there(tmp_path: Path) -> None:
    values = open_memmap(tmp_path / "values.npy", "w+", np.int32, (6,))
    values[:] = np.arange(6)
    column = gridml.Ragged(values, np.array([0, 4, 6]))
    graph = gridml.Graph()
    total = graph.add(Total, value=np.zeros(1, np.int64))
    graph.add(Sentence, tokens=column, track=[[], []], text=["", ""], total=total)
    assert graph.tables["Sentence"].ragged["tokens"].values is values
    chunk = cut(graph, "Sentence", np.array([1]), None, None, bsp=False)
    assert chunk.tables["Sentence"].ragged["tokens"].values.tolist() == [4, 5]
    assert not isinstance(chunk.tables["Sentence"].ragged["tokens"].values, np.memmap)


def test_a_run_is_not_gone_on_with_when_their_values_or_offsets_differ() -> None:
    digests = [sentences(tokens, ["a", "b"]).digests()["Sentence.tokens"] for tokens in ([[1], [2]], [[1, 2], []])]
    assert digests[0] != digests[1]
    assert sentences([[1]]).fingerprint()["Sentence"]["fields"]["text"] == ["|u1", [], "text"]


def test_nothing_of_any_dtype_is_an_empty_list() -> None:
    ragged = sentences([np.zeros(0), [], np.zeros((0,), bool), [7]]).tables["Sentence"].ragged["tokens"]  # type: ignore[list-item]
    assert (ragged.values.tolist(), ragged.values.dtype, ragged.offsets.tolist()) == ([7], np.int32, [0, 0, 0, 0, 1])

    class Track(gridml.Vertex):
        points = gridml.ragged("int32", (2,))

    graph = gridml.Graph()
    graph.add(Track, points=[np.zeros((0, 2)), [[1, 2]]])
    assert graph.tables["Track"].ragged["points"].offsets.tolist() == [0, 0, 1]


def test_bytes_of_a_vertex_count_them() -> None:
    assert bytes_each(sentences([[1] * 100]), "Sentence") - bytes_each(sentences([[1]]), "Sentence") >= 99 * 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": [[1], [0.5]]}, "Sentence.tokens of vertex 1 got dtype float64; declared is int32"),
        ({"tokens": [[1], [[2]]]}, r"Sentence.tokens of vertex 1 got int64 of shape \(1, 1\); expected \(any number\)"),
        ({"tokens": [[1], ["a"]]}, "Sentence.tokens of vertex 1 got <U1"),
        ({"tokens": [[1], [1 << 40]]}, "which int32 cannot hold"),
        ({"tokens": "ab"}, "Sentence.tokens got str; expected one list or array for each vertex"),
        ({"tokens": [[1]]}, "tokens: 1"),
        ({"text": ["a", b"b"]}, "Sentence.text of vertex 1 got bytes; expected a str"),
        ({"text": ["a", "\ud800"]}, "Sentence.text of vertex 1 is text that UTF-8 cannot encode"),
        ({"tokens": Ragged(np.zeros(2, np.int32), np.array([0, 2, 1]))}, "expected a non-decreasing array from 0 to 2"),
        ({"tokens": Ragged(np.zeros((2, 2), np.int32), np.array([0, 1, 2]))}, r"values of shape \(2,\)"),
        (
            {"text": Ragged(np.zeros(2, np.uint8), np.array([0, 1, 2]))},
            "got numbers with values of shape .* declared are text",
        ),
    ],
    ids=["float", "shape", "letters", "large", "str", "short", "bytes", "surrogate", "offsets", "pairs", "numbers"],
)
def test_what_does_not_fit_is_named(values: dict[str, Any], message: str) -> None:
    given_values: dict[str, Any] = {
        "tokens": [[1], [2]],
        "track": [[], []],
        "text": ["a", "b"],
        "total": np.zeros(2, int),
    }
    graph = gridml.Graph()
    graph.add(Total, value=np.zeros(1, np.int64))
    with pytest.raises(ProgramError, match=message):
        graph.add(Sentence, **given_values | values)


def test_a_replicated_type_has_none() -> None:
    class Word(gridml.Vertex):
        letters = gridml.string()
        aggregate = gridml.add()

    with pytest.raises(ProgramError, match=r"Word is replicated and has fields of differing length \(letters\)"):
        gridml.Graph().add(Word, letters=["a"])


def test_offsets_that_do_not_fit_are_no_chunk() -> None:
    table = ChunkTable("Sentence", np.arange(1), {}, {"tokens": Ragged(np.zeros(2, np.int32), np.array([0, 3]))})
    payload = Chunk("Sentence", {"Sentence": table}, {}).encode()
    with pytest.raises(ValueError, match="not a chunk"):
        Chunk.decode(payload)
