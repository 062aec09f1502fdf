"""A worker's cache of chunks returns rows as they were sent, and never uses a damaged or missing payload."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gridml
from gridml.caching.chunk_cache import ChunkCache
from gridml.model.chunk import Chunk, cut
from gridml.protocol import bundle
from gridml.protocol.messages import CACHED_DIGITS, MAX_CACHED, Sync, sync_from, to_json
from master.caching.known_rows import CarriedFiles, CarriedPayloads
from tests.support.effort import examples

ROWS = 240
DAY_S = 86_400.0


class Total(gridml.Vertex):
    value = gridml.array("float64")
    aggregate = gridml.add()


class Row(gridml.Vertex):
    values = gridml.array("float32", (3,))
    factor = gridml.array("float32", mutable=True)
    tokens = gridml.ragged("int16")
    text = gridml.string()
    total = gridml.edge(Total)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    total = g.add(Total, value=np.zeros(1))
    g.add(
        Row,
        values=np.arange(3 * ROWS, dtype=np.float32).reshape(ROWS, 3),
        factor=np.arange(ROWS, dtype=np.float32),
        tokens=[np.arange(at % 4) + at for at in range(ROWS)],
        text=[f"row {at}" for at in range(ROWS)],
        total=total,
    )
    return g


GRAPH = graph()


class Master:
    """The master of one worker: it cuts chunks without the rows that the worker reports."""

    def __init__(self, folder: Path) -> None:
        self._files = CarriedFiles(folder)
        self.restart()
        self.sent = 0

    def restart(self) -> None:
        """Replace it by the next master of the run."""
        self.carried = CarriedPayloads(GRAPH, self._files)

    def chunk(self, vertices: list[int], cached: tuple[str, ...]) -> tuple[str, bytes]:
        """Return the payload of a chunk and its digest."""

        def held(name: str, ids: np.ndarray) -> object:
            return self.carried.borrow(name, ids, cached)[0]

        chunk = cut(GRAPH, "Row", np.array(vertices), None, None, bsp=False, held=held)  # type: ignore[arg-type]
        payload = chunk.encode()
        sha256 = hashlib.sha256(payload).hexdigest()
        self.carried.add(sha256, chunk)
        self.sent += len(chunk.tables["Row"].carried)
        return sha256, payload


def taken(cache: ChunkCache, sha256: str, payload: bytes) -> Chunk:
    """Return the chunk as a session reads it."""
    chunk = Chunk.decode(payload)
    whole = cache.with_borrowed_rows(chunk)
    cache.put(sha256, payload, chunk)
    return whole


def assert_whole(chunk: Chunk, vertices: list[int]) -> None:
    table = chunk.tables["Row"]
    assert table.borrowed is None
    assert table.fields["values"][:, 0].tolist() == [3 * at for at in vertices]
    assert table.fields["factor"].tolist() == vertices
    assert [table.ragged["text"].one(at) for at in range(len(vertices))] == [f"row {at}" for at in vertices]
    assert [table.ragged["tokens"].one(i).tolist() for i in range(len(vertices))] == [
        [*range(at, at + at % 4)] for at in vertices
    ]


@pytest.fixture
def cache(tmp_path: Path) -> ChunkCache:
    return ChunkCache(tmp_path / "kept", 1 << 20)


def files(cache: ChunkCache) -> list[Path]:
    return sorted(cache._folder.iterdir())


def test_a_second_epoch_in_another_order_brings_no_row_again(cache: ChunkCache) -> None:
    master, random = Master(cache._folder.with_name("carried")), np.random.default_rng(0)
    for _ in range(3):
        order = random.permutation(ROWS).tolist()
        for start in range(0, ROWS, 120):
            vertices = order[start : start + 120]
            assert_whole(taken(cache, *master.chunk(vertices, cache.names())), vertices)
        assert master.sent <= ROWS + 16  # a few rows are sent again, because opening a payload for them does not pay


@st.composite
def ranges(draw: st.DrawFn) -> list[int]:
    """Draw the vertices of a chunk, in some order."""
    first = draw(st.integers(0, 60))
    last = draw(st.integers(first, 120))
    return np.random.default_rng(draw(st.integers(0, 9))).permutation(np.arange(first, last + 1)).tolist()


@settings(max_examples=examples(60))
@given(
    chunks=st.lists(ranges(), min_size=2, max_size=6),
    data=st.data(),
)
def test_whatever_is_lost_or_damaged_rows_are_right_or_asked_for_again(
    chunks: list[list[int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, carried = tmp_path_factory.mktemp("kept"), tmp_path_factory.mktemp("carried")
    master = Master(carried)
    cache = ChunkCache(folder, 1 << 20)
    for vertices in chunks:
        named = cache.names()
        for path in sorted([*folder.iterdir(), *carried.iterdir()]):
            match data.draw(st.sampled_from(["as it was", "gone", "cut", "changed"])):
                case "gone":
                    path.unlink()
                case "cut":
                    path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, 200))])
                case "changed" if path.stat().st_size:  # an emptied one has no byte to change
                    payload = bytearray(path.read_bytes())
                    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1
                    path.unlink()  # mapped content stays
                    path.write_bytes(payload)
        if data.draw(st.booleans()):
            cache = ChunkCache(folder, 1 << 20)  # another worker finds the folder of a dead one
        if data.draw(st.booleans()):
            master.restart()
        for _ in range(len(chunks) + 1):
            try:
                whole = taken(cache, *master.chunk(vertices, named))
                break
            except ValueError:
                named = cache.names()  # sent with the next sync
        assert_whole(whole, vertices)


def test_a_damaged_payload_is_removed_and_named_no_more(cache: ChunkCache) -> None:
    master, vertices = Master(cache._folder.with_name("carried")), [*range(ROWS)]
    taken(cache, *master.chunk(vertices, cache.names()))
    (path,) = files(cache)
    named = cache.names()
    assert named == (path.name[:CACHED_DIGITS],)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    again = ChunkCache(cache._folder, 1 << 20)
    with pytest.raises(ValueError, match="cannot be read: its SHA-256 differs"):
        taken(again, *master.chunk(vertices, named))
    assert again.names() == ()
    assert files(again) == []


def test_a_payload_that_cannot_be_removed_is_named_no_more(cache: ChunkCache) -> None:
    master, vertices = Master(cache._folder.with_name("carried")), [*range(ROWS)]
    taken(cache, *master.chunk(vertices, cache.names()))
    (path,) = files(cache)
    kept, named = path.read_bytes(), cache.names()
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be read"):
        taken(ChunkCache(cache._folder, 1 << 20), *master.chunk(vertices, named))
    bad = ChunkCache(cache._folder, 1 << 20)
    path.write_bytes(kept[:-1])
    with pytest.raises(ValueError, match="cannot be read"):
        taken(bad, *master.chunk(vertices, named))
    path.write_bytes(kept[:-1])  # it reappears, as on a read-only disk
    assert bad.names() == ()


def test_a_payload_that_another_worker_removed_is_used_again_once_it_is_back(cache: ChunkCache) -> None:
    master, vertices = Master(cache._folder.with_name("carried")), [*range(ROWS)]
    taken(cache, *master.chunk(vertices, cache.names()))
    (path,) = files(cache)
    kept, named = path.read_bytes(), cache.names()
    path.unlink()
    with pytest.raises(ValueError, match="is gone"):
        taken(cache, *master.chunk(vertices, named))
    assert cache.names() == ()
    path.write_bytes(kept)  # as if the other worker had received it, too
    assert cache.names() == named
    assert_whole(taken(cache, *master.chunk(vertices, named)), vertices)
    assert master.sent == ROWS


def test_a_payload_that_is_removed_while_it_is_opened_serves_and_leaves_no_file(
    cache: ChunkCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, vertices = Master(cache._folder.with_name("carried")), [*range(ROWS)]
    taken(cache, *master.chunk(vertices, cache.names()))
    (path,) = files(cache)
    digest = bundle.digest

    def removed(payload: memoryview) -> str:
        path.unlink()
        return digest(payload)

    monkeypatch.setattr(bundle, "digest", removed)
    _sha256, payload = master.chunk(vertices, cache.names())
    assert_whole(cache.with_borrowed_rows(Chunk.decode(payload)), vertices)
    assert files(cache) == []


def test_a_folder_that_cannot_be_written_to_is_read(cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    master, vertices = Master(cache._folder.with_name("carried")), [*range(ROWS)]
    taken(cache, *master.chunk(vertices, cache.names()))
    (path,) = files(cache)

    def refused(*given: object, **named: object) -> None:
        raise PermissionError("read-only")

    for name in ("unlink", "utime"):
        monkeypatch.setattr(os, name, refused)
    assert_whole(taken(ChunkCache(cache._folder, 1 << 20), *master.chunk(vertices, cache.names())), vertices)
    path.write_bytes(b"")
    again = ChunkCache(cache._folder, 1 << 20)
    with pytest.raises(ValueError, match="cannot be read"):
        taken(again, *master.chunk(vertices, cache.names()))
    assert again.names() == ()


def test_a_full_cache_keeps_what_it_has(tmp_path: Path) -> None:
    master = Master(tmp_path / "carried")
    _, payload = Master(tmp_path / "carried").chunk([*range(20)], ())
    cache = ChunkCache(tmp_path / "kept", 2 * len(payload) + 200)
    for start in (0, 20, 40, 0):
        vertices = [*range(start, start + 20)]
        assert_whole(taken(cache, *master.chunk(vertices, cache.names())), vertices)
    assert len(files(cache)) == 2
    assert master.sent == 60  # the last rows did not evict the first


def test_a_full_disk_keeps_nothing_and_loses_nothing(cache: ChunkCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    master, vertices = Master(cache._folder.with_name("carried")), [*range(ROWS)]
    with monkeypatch.context() as patched:
        patched.setattr(bundle, "write_atomic", full)  # for the worker's cache, and for the state of the next master
        assert_whole(taken(cache, *master.chunk(vertices, cache.names())), vertices)
        assert cache.names() == ()
    for _ in range(2):  # there is room again
        assert_whole(taken(cache, *master.chunk(vertices, cache.names())), vertices)
        master.restart()
    assert master.sent == 2 * ROWS


def test_what_was_not_used_for_long_makes_room(tmp_path: Path) -> None:
    _, payload = Master(tmp_path / "carried").chunk([*range(20)], ())
    old = ChunkCache(tmp_path / "kept", 2 * len(payload) + 200)
    taken(old, *Master(tmp_path / "carried").chunk([*range(20)], ()))
    (path,) = files(old)
    os.utime(path, (path.stat().st_mtime - DAY_S,) * 2)
    cache, master = ChunkCache(tmp_path / "kept", 2 * len(payload) + 200), Master(tmp_path / "carried")
    for start in (20, 40):
        taken(cache, *master.chunk([*range(start, start + 20)], cache.names()))
    assert path not in files(cache)
    assert len(files(cache)) == 2


def test_other_files_of_the_folder_are_left_alone(cache: ChunkCache) -> None:
    (cache._folder / "notes.txt").write_text("mine")
    taken(cache, *Master(cache._folder.with_name("carried")).chunk([*range(20)], ()))
    assert len(cache.names()) == 1
    assert (cache._folder / "notes.txt").read_text() == "mine"


def test_a_sync_says_what_is_kept_and_nothing_else() -> None:
    digits = "0123456789abcdef"
    for cached in (None, (), (digits,)):
        sync = Sync("w1", wants=True, cached=cached)
        assert sync_from(to_json(sync)) == sync
    for wrong in (["x" * 16], [digits[:-1]], [1], "0" * 16, [digits] * (MAX_CACHED + 1)):
        with pytest.raises(ValueError, match="cached"):
            sync_from({**to_json(Sync("w1")), "cached": wrong})


def test_a_master_that_comes_after_sends_no_kept_row_again(cache: ChunkCache) -> None:
    master, random = Master(cache._folder.with_name("carried")), np.random.default_rng(0)
    for _ in range(3):
        vertices = random.permutation(ROWS).tolist()
        for start in range(0, ROWS, 120):
            master.restart()
            part = vertices[start : start + 120]
            assert_whole(taken(cache, *master.chunk(part, cache.names())), part)
    assert master.sent == ROWS


def test_a_master_forgets_the_oldest_payloads_and_sends_their_rows_again(tmp_path: Path) -> None:
    carried = CarriedPayloads(GRAPH, CarriedFiles(tmp_path), max_bytes=2 * 20 * 12)
    shas = []
    for start in (0, 20, 40):
        chunk = cut(GRAPH, "Row", np.arange(start, start + 20), None, None, bsp=False)
        shas.append(hashlib.sha256(chunk.encode()).hexdigest())
        carried.add(shas[-1], chunk)
    cached = tuple(sha[:CACHED_DIGITS] for sha in shas)
    borrowed, reason = carried.borrow("Row", np.arange(60), cached)
    assert borrowed is not None
    assert borrowed.payloads == tuple(shas[1:])
    assert reason == "the worker has 40 of 60 rows"
    assert carried.borrow("Row", np.arange(20), cached) == (None, "the worker has none of its rows")
