"""Map-style data sets become fields on disk: accepted forms, written once, and the error of each misfit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gridml
from gridml.cli.main import main
from gridml.datasets import map_style
from gridml.errors import DataError, StorageError


class Photo(gridml.Vertex):
    pixels = gridml.array("uint8", (3, 2))
    label = gridml.array("int64")


class Sentence(gridml.Vertex):
    tokens = gridml.ragged("int32")
    text = gridml.string()


class Single(gridml.Vertex):
    value = gridml.array("float32")


@dataclasses.dataclass
class Listed:
    """A data set in torch's form that counts its reads."""

    items: list[Any]
    reads: int = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> Any:
        self.reads += 1
        return self.items[at]


def photos(count: int) -> list[tuple[Any, int]]:
    return [(np.full((3, 2), at % 256, np.uint8), at % 10) for at in range(count)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRIDML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fields"


def test_tuples_become_mapped_fields_of_a_graph(cache: Path) -> None:
    fields = gridml.from_torch(Listed(photos(300)), Photo)
    assert isinstance(fields["pixels"], np.memmap)
    graph = gridml.Graph()
    graph.add(Photo, **fields)
    table = graph.tables["Photo"]
    assert table.count == 300
    assert table.columns["pixels"] is fields["pixels"]  # on the disk still
    assert table.columns["label"][299] == 9
    assert not table.columns["label"].flags.writeable
    assert [path.name[:1] != "." for path in cache.iterdir()] == [True]  # no temporary file is left


def test_torch_s_own_data_sets_are_taken() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(12, dtype=torch.uint8).reshape(2, 3, 2), torch.tensor([4, 5]))
    fields = gridml.from_torch(data, Photo)
    assert fields["pixels"][1].tolist() == [[6, 7], [8, 9], [10, 11]]
    assert fields["label"].tolist() == [4, 5]
    part = torch.utils.data.Subset(data, [1])
    assert gridml.from_torch(part, Photo)["label"].tolist() == [5]


def test_dicts_lists_and_text() -> None:
    items = [{"tokens": [1, 2], "text": "one"}, {"tokens": [], "text": "zwölf"}, {"tokens": (3,), "text": ""}]
    fields = gridml.from_torch(Listed(items), Sentence)
    tokens, text = fields["tokens"], fields["text"]
    assert isinstance(tokens, gridml.Ragged)
    assert isinstance(text, gridml.Ragged)
    assert [tokens.one(at).tolist() for at in range(3)] == [[1, 2], [], [3]]
    assert [text.one(at) for at in range(3)] == ["one", "zwölf", ""]
    graph = gridml.Graph()
    graph.add(Sentence, **fields)
    assert isinstance(graph.tables["Sentence"].ragged["tokens"].values, np.memmap)


def test_names_say_where_a_field_is() -> None:
    items = [{"img": np.zeros((3, 2), np.uint8), "label": 3}]
    assert gridml.from_torch(Listed(items), Photo, names={"pixels": "img"})["label"].tolist() == [3]
    swapped = [(3, np.zeros((3, 2), np.uint8), "more")]
    assert gridml.from_torch(Listed(swapped), Photo, names={"pixels": 1, "label": 0})["label"].tolist() == [3]


def test_plain_values_are_the_one_field() -> None:
    assert gridml.from_torch(Listed([1.5, 2.0]), Single)["value"].tolist() == [1.5, 2.0]


class Counted(gridml.Vertex):
    pixels = gridml.array("uint8", (3, 2))
    uses = gridml.array("int64", mutable=True)
    label = gridml.array("int64")


def test_a_list_is_the_value_of_the_one_field_and_a_tuple_has_a_value_for_each() -> None:
    class Tokens(gridml.Vertex):
        tokens = gridml.ragged("int32")

    for items in ([[1, 2], [], [3]], [([1, 2],), ([],), ([3],)]):
        tokens = gridml.from_torch(Listed(items), Tokens)["tokens"]
        assert [tokens.one(at).tolist() for at in range(3)] == [[1, 2], [], [3]]  # type: ignore[union-attr]
    named = gridml.from_torch(Listed([["a", [1, 2]]]), Tokens, names={"tokens": 1})["tokens"]
    assert named.one(0).tolist() == [1, 2]  # type: ignore[union-attr]


def test_a_field_that_no_item_has_is_left_out() -> None:
    expected = r"expected one value for each .* A field that no item has is left out by names=\{\"uses\": None\}"
    with pytest.raises(DataError, match=expected):
        gridml.from_torch(Listed(photos(3)), Counted)
    for items in (photos(3), [dict(zip(("pixels", "label"), each, strict=True)) for each in photos(3)]):
        fields = gridml.from_torch(Listed(items), Counted, names={"uses": None})
        assert list(fields) == ["pixels", "label"] and fields["label"].tolist() == [0, 1, 2]  # type: ignore[union-attr]
        gridml.Graph().add(Counted, uses=np.zeros(3, int), **fields)
    columns = {"pixels": [photo for photo, _ in photos(3)], "label": [0, 1, 2]}
    assert list(gridml.from_huggingface(Columns(columns), Counted, names={"uses": None})) == ["pixels", "label"]
    nothing = {"pixels": None, "uses": None, "label": None}
    with pytest.raises(DataError, match="to fill"):
        gridml.from_torch(Listed(photos(3)), Counted, names=nothing)


def test_what_was_written_is_found_again() -> None:
    first = Listed(photos(1000))
    gridml.from_torch(first, Photo)
    again = Listed(photos(1000))
    fields = gridml.from_torch(again, Photo)
    assert first.reads > 1000
    assert again.reads <= map_style.SAMPLED + 1
    assert fields["label"][999] == 9


@pytest.mark.parametrize("change", ["count", "item", "declaration", "names"])
def test_a_changed_data_set_is_written_again(change: str, cache: Path) -> None:
    class Wide(gridml.Vertex):
        pixels = gridml.array("int16", (3, 2))
        label = gridml.array("int64")

    gridml.from_torch(Listed(photos(100)), Photo)
    items: list[Any] = photos(100)
    if change == "count":
        items = items[:-1]
    elif change == "item":
        items[99] = (items[99][0], 8)
    names = {"pixels": 0, "label": 1} if change == "names" else None
    changed = Listed(items)
    fields = gridml.from_torch(changed, Wide if change == "declaration" else Photo, names=names)
    assert changed.reads > 99
    assert fields["label"].tolist() == [label for _, label in items]
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "manifest"])
def test_damaged_fields_are_written_again(damage: str, cache: Path) -> None:
    gridml.from_torch(Listed(photos(100)), Photo)
    (place,) = cache.iterdir()
    file = place / ("pixels.values" if damage == "cut" else map_style.MANIFEST)
    file.write_bytes(file.read_bytes()[:-1])
    said: list[str] = []
    fields = gridml.from_torch(Listed(photos(100)), Photo, progress=said.append)
    assert fields["pixels"][99].tolist() == [[99, 99]] * 3
    assert "cannot be read and is written again" in said[0]


WRONG_SHAPE = (
    r"item 1: .*pixels got .* shape \(2, 2\); expected uint8 of shape \(3, 2\), as declared. All items of gridml.array "
    r"have one shape: make them so in the data set, or declare it as gridml.ragged"
)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((np.zeros((2, 2), np.uint8), 1), WRONG_SHAPE),
        ((np.zeros((3, 2), np.float32), 1), "item 1: Photo.pixels got dtype float32; declared is uint8. Declare"),
        ((np.full((3, 2), 256), 1), "item 1: Photo.pixels got integers from 256 to 256, which uint8 cannot"),
        (
            (np.zeros((3, 2), np.uint8), "cat"),
            "item 1: Photo.label got str .*; expected int64 .*gridml.string",
        ),
        ((np.zeros((3, 2), np.uint8), [1, [2]]), "item 1: Photo.label got list, which is no array"),
        ((np.zeros((3, 2), np.uint8),), "item 1 is a tuple of 1; expected one value for each of the fields"),
        ({"pixels": np.zeros((3, 2), np.uint8)}, "item 1 has no 'label' for the field label; it has"),
        (object(), "item 1 is object; expected a dict or a tuple with the fields"),
    ],
    ids=["shape", "float", "range", "word", "uneven", "short", "missing", "object"],
)
def test_an_item_that_does_not_fit_is_named(item: Any, message: str, cache: Path) -> None:
    with pytest.raises(DataError, match=message):
        gridml.from_torch(Listed([*photos(1), item, *photos(1)]), Photo)
    assert not cache.exists() or not list(cache.iterdir())  # no file is left


def test_ragged_items_that_do_not_fit_are_named() -> None:
    with pytest.raises(DataError, match=r"item 1: Sentence.tokens got int64 of shape \(1, 1\); expected \(any"):
        gridml.from_torch(Listed([([1], "a"), ([[1]], "b")]), Sentence)
    with pytest.raises(DataError, match=r"item 0: Sentence\.text got int; expected a str"):
        gridml.from_torch(Listed([([1], 3)]), Sentence)


@pytest.mark.parametrize("kind", ["array", "ragged"])
def test_a_value_beyond_the_declared_range_is_named(kind: str) -> None:
    class Narrow(gridml.Vertex):
        value = gridml.array("float32", (2,)) if kind == "array" else gridml.ragged("float32")

    fits = [float("inf"), float("nan")]  # as they are
    value = gridml.from_torch(Listed([fits, [0.1, -3e38]]), Narrow)["value"]
    assert np.isinf(value.values if isinstance(value, gridml.Ragged) else value).sum() == 1
    with pytest.raises(DataError, match=r"item 1: Narrow.value got -1e\+39 in row 1, which float32 cannot hold"):
        gridml.from_torch(Listed([fits, [0.1, -1e39]]), Narrow)


def test_empty_lists_of_any_dtype_and_folders_as_text_are_taken(tmp_path: Path) -> None:
    class Track(gridml.Vertex):
        points = gridml.ragged("int32", (2,))

    items = [(np.zeros((0, 2)),), ([],), ([[1, 2]],)]
    points = gridml.from_torch(Listed(items), Track, folder=str(tmp_path / "here"))["points"]
    assert isinstance(points, gridml.Ragged)
    assert [points.one(at).tolist() for at in range(3)] == [[], [], [[1, 2]]]
    assert [*(tmp_path / "here").iterdir()]
    with pytest.raises(DataError, match=r"item 0: .* shape \(0, 3\); expected \(any number, 2\) numbers"):
        gridml.from_torch(Listed([(np.zeros((0, 3), np.int32),)]), Track)


def test_integers_that_are_0_or_1_are_taken_for_bool() -> None:
    class Flag(gridml.Vertex):
        on = gridml.array("bool")

    assert gridml.from_torch(Listed([0, True, 1]), Flag)["on"].tolist() == [False, True, True]  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"item 1: Flag\.on got integers from 2 to 2, which bool cannot hold"):
        gridml.from_torch(Listed([0, 2]), Flag)


def test_bfloat16_is_taken_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    assert gridml.from_torch(Listed([torch.tensor(1.5).bfloat16()]), Single)["value"].tolist() == [1.5]  # type: ignore[union-attr]


def test_masks_lengths_and_types_that_are_none_are_refused() -> None:
    with pytest.raises(DataError, match=r"item 0 has a masked array as value, whose mask would be lost"):
        gridml.from_torch(Listed([np.ma.masked_array(1.0, True)]), Single)

    class Unsized(Listed):
        def __len__(self) -> int:
            raise NotImplementedError("ask the server")

    with pytest.raises(DataError, match="cannot have the length of Unsized: NotImplementedError: ask the server"):
        gridml.from_torch(Unsized([]), Single)
    with pytest.raises(DataError, match=r"got 'Single' for the vertex type; expected a subclass of gridml\.Vertex"):
        gridml.from_torch(Listed([1.0]), "Single")  # type: ignore[arg-type]


def test_a_random_transform_is_found() -> None:
    class Random(Listed):
        def __getitem__(self, at: int) -> Any:
            self.reads += 1
            return np.full((3, 2), self.reads, np.uint8), 0

    with pytest.raises(DataError, match=r"item 0 of Random differs each time it is read.*do them in f"):
        gridml.from_torch(Random(photos(3)), Photo)


def test_streams_empty_sets_and_lengths_that_are_wrong_are_refused() -> None:
    with pytest.raises(DataError, match="from_torch got generator, which has no length; expected a map-style data set"):
        gridml.from_torch((each for each in photos(1)), Photo)
    with pytest.raises(DataError, match="from_torch got an empty Listed"):
        gridml.from_torch(Listed([]), Photo)

    class Long(Listed):
        def __len__(self) -> int:
            return 5

    with pytest.raises(DataError, match=r"Long has a length of 5 and no item 2"):
        gridml.from_torch(Long(photos(2)), Photo)
    with pytest.raises(DataError, match="names has 'image', which is no field of Photo; it has"):
        gridml.from_torch(Listed(photos(1)), Photo, names={"image": 0})


class Damaged(Listed):
    """Its third item cannot be read."""

    def __getitem__(self, at: int) -> Any:
        if at == 2:
            raise OSError("image file is truncated")
        return super().__getitem__(at)


def test_an_item_that_cannot_be_read_is_named_with_the_traceback_of_the_data_set(cache: Path) -> None:
    count = map_style.SAMPLED * 3  # so that item 2 is not sampled
    with pytest.raises(DataError, match="Damaged cannot read item 2: OSError: image file is truncated") as refused:
        gridml.from_torch(Damaged(photos(count)), Photo)
    assert isinstance(refused.value.__cause__, OSError)
    text = refused.value.traceback_text
    assert 'raise OSError("image file is truncated")' in text and "in _item" not in text
    assert not list(cache.iterdir())


def test_the_traceback_of_a_data_set_is_shown_at_the_terminal_and_by_a_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "damaged.py"
    program.write_text(
        "import gridml\n\nclass Row(gridml.Vertex):\n    value = gridml.array('float32')\n"
        "    uses = gridml.array('int64', mutable=True)\n\n"
        "class Rows(list):\n    def __getitem__(self, at):\n        return 1 / (at - 3)\n\n"
        "def graph():\n    fields = gridml.from_torch(Rows(range(9)), Row, names={'uses': None})\n"
        "    g = gridml.Graph()\n    g.add(Row, uses=[0] * 9, **fields)\n    return g\n\n"
        "@gridml.update\ndef f(row: Row):\n    pass\n\nprogram = gridml.Program(graph, f)\n"
    )
    with pytest.raises(DataError, match="Rows cannot read item 3: ZeroDivisionError") as refused:
        gridml.run(program, workers=1, run_dir=tmp_path / "run", display="none")
    assert any("return 1 / (at - 3)" in note for note in refused.value.__notes__)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(program), "--run-dir", str(tmp_path / "run")])
    assert ended.value.code == 5
    assert "return 1 / (at - 3)" in capsys.readouterr().err


def test_a_disk_that_is_too_small_is_reported_before_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = dataclasses.make_dataclass("Usage", ["free"])
    monkeypatch.setattr(map_style.shutil, "disk_usage", lambda folder: usage(100))
    with pytest.raises(StorageError, match=r"need about 1,400 bytes .* has 100 free"):
        gridml.from_torch(Listed(photos(100)), Photo)


class Columns:
    """A stand-in for a split of `datasets`, with the used parts: columns, formats, a fingerprint."""

    def __init__(self, columns: dict[str, list[Any]], fingerprint: str = "first") -> None:
        self.columns = columns
        self.column_names = list(columns)
        self._fingerprint = fingerprint
        self.rows_read = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def select_columns(self, names: list[str]) -> Columns:
        self.column_names = names
        return self

    def with_format(self, name: str) -> Columns:
        assert name == "numpy"
        return self

    def __getitem__(self, rows: slice) -> dict[str, Any]:
        self.rows_read += len(range(*rows.indices(len(self))))
        return {name: self.columns[name][rows] for name in self.column_names}


def test_columns_of_a_split_become_fields() -> None:
    columns = {
        "ids": [np.arange(at % 3) for at in range(600)],
        "text": [np.str_(at) for at in range(600)],
        "more": [0] * 600,
    }
    fields = gridml.from_huggingface(Columns(columns), Sentence, names={"tokens": "ids"})
    assert fields["tokens"].one(599).tolist() == [0, 1]  # type: ignore[union-attr]
    assert fields["text"].one(599) == "599"  # type: ignore[union-attr]
    again = Columns(columns)
    gridml.from_huggingface(again, Sentence, names={"tokens": "ids"})
    assert again.rows_read == 0
    other = Columns(columns, "second")
    gridml.from_huggingface(other, Sentence, names={"tokens": "ids"})
    assert other.rows_read == 600


def test_an_item_of_a_split_that_cannot_be_read_is_named() -> None:
    class Broken(Columns):
        def __getitem__(self, rows: slice | int) -> Any:
            if isinstance(rows, int) and rows != 301:
                return {}
            if rows == 301 or 301 in range(*rows.indices(len(self))):  # type: ignore[union-attr]
                raise ValueError("no image")
            return super().__getitem__(rows)  # type: ignore[arg-type]

    with pytest.raises(DataError, match="Broken cannot read item 301: ValueError: no image"):
        gridml.from_huggingface(Broken({"value": [0.5] * 600}), Single)


def test_several_splits_streams_and_other_columns_are_refused() -> None:
    several = Columns({"a": [1]})
    several.column_names = {"train": ["a"]}  # type: ignore[assignment]
    with pytest.raises(DataError, match="got the splits \\['train'\\]"):
        gridml.from_huggingface(several, Single)
    with pytest.raises(DataError, match=r"from_huggingface got list; expected a datasets.Dataset"):
        gridml.from_huggingface([1], Single)
    with pytest.raises(DataError, match=r"has no column 'value'; it has \['a'\].*names={\"value\": \"a\"}"):
        gridml.from_huggingface(Columns({"a": [1]}), Single)
