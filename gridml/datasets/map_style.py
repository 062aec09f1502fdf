"""Map-style data sets of torch and Hugging Face as fields of a vertex type: read once, written to the disk, mapped.

No more than one item, or one group of them, is in memory at a time. What was written is found again by a key: the
fingerprint where the data set has one (Hugging Face), else its class, its length and what `SAMPLED` of its items hold.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.datasets.field_writer import FieldWriter, as_array, opened
from gridml.datasets.sources import Report, folders
from gridml.errors import DataError, GridmlError, StorageError
from gridml.model.program import called_traceback
from gridml.model.ragged import Ragged, ragged
from gridml.model.vertex import Vertex, array, describe
from gridml.protocol.foreign import described

log = logging.getLogger("gridml.datasets")

SAMPLED = 64  # items, evenly over the data set
MANIFEST = "fields.json"
_AT_ONCE = 256  # items of a Hugging Face data set, which reads by columns

Fields = dict[str, NDArray[Any] | Ragged]
Item = dict[str, Any]  # value by field


@dataclass(frozen=True)
class _Written:
    """What is to be on the disk: `key` names it among others below `folder`, `items` makes it."""

    type_name: str
    fields: Mapping[str, array | ragged]
    count: int
    key: str
    folder: Path
    report: Report


def from_torch(
    dataset: Any,
    vertex_type: type[Vertex],
    *,
    names: Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
) -> Fields:
    """Return the array, ragged and string fields of `vertex_type` from a torch map-style data set (`len` and `[i]`).

    An item is a dict by field name, a tuple with the fields in the order of their declaration, or the one field's
    value (a list is its value, too); each value is a tensor, an array, a number, or a str. `names` says for a field
    which key or position of an item it is, where that is another, and None for one that no item has, which is then left
    to `graph.add`. Values become the declared dtype where that changes nothing but the form.

    Usage: `graph.add(Image, network=network, **gridml.from_torch(data, Image))`.

    The fields are written once, below `folder` (default: `fields` in the cache of `mnist`), and mapped from there.
    Written fields are found again by class, length and declaration of the data set and by 64 of its items: one that
    changed in others only needs another `folder`.

    Raises DataError, naming the item, for one that does not fit or cannot be read (then with the traceback of the data
    set's own code, and its error as the cause), for a data set whose items differ each time they are
    read (a random transform, which belongs into f) and for one without a length; StorageError where the disk cannot
    hold the fields.
    """
    count = _length(dataset, "from_torch")
    chosen = _Chosen(vertex_type, names)
    sampled = hashlib.sha256()
    for at in dict.fromkeys(np.linspace(0, count - 1, min(SAMPLED, count)).astype(int).tolist()):
        bits = _bits(chosen.declared, chosen.of(_item(dataset, at), at), at)
        if at == 0 and bits != _bits(chosen.declared, chosen.of(_item(dataset, at), at), at):
            raise DataError(
                f"item 0 of {type(dataset).__name__} differs each time it is read. Fields are written once: leave "
                f"random transforms out of the data set, and do them in f."
            )
        sampled.update(bits)
    key = [type(dataset).__module__, type(dataset).__qualname__, sampled.hexdigest()]
    items = ((at, chosen.of(_item(dataset, at), at)) for at in range(count))
    return _fields(_written(chosen, count, [key], folder, progress), items)


def from_huggingface(
    dataset: Any,
    vertex_type: type[Vertex],
    *,
    names: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
) -> Fields:
    """Return the array, ragged and string fields of `vertex_type` from a split of a Hugging Face data set.

    A field is the column of its name, or of the name that `names` gives for it. Images come as they are stored,
    (height, width, channels). Everything else is as for `from_torch`, except that written fields are found again by the
    data set's own fingerprint. Raises DataError also for several splits and for a stream.
    """
    columns = getattr(dataset, "column_names", None)
    if isinstance(columns, dict):
        raise DataError(f'from_huggingface got the splits {sorted(columns)}; give one of them, as in dataset["train"].')
    if not isinstance(columns, list) or not hasattr(dataset, "with_format"):
        raise DataError(f"from_huggingface got {type(dataset).__name__}; expected a datasets.Dataset.")
    count = _length(dataset, "from_huggingface")
    chosen = _Chosen(vertex_type, names)
    if missing := [field for field, column in chosen.places.items() if column not in columns]:
        raise DataError(
            f"the data set has no column {chosen.places[missing[0]]!r}; it has {columns}. Say which field is "
            f'which column: names={{"{missing[0]}": "{columns[0]}"}}.'
        )
    key = ["huggingface", str(getattr(dataset, "_fingerprint", secrets.token_hex(16)))]
    numbers = dataset.select_columns(list(dict.fromkeys(chosen.places.values()))).with_format("numpy")

    def items() -> Iterator[tuple[int, Item]]:
        for start in range(0, count, _AT_ONCE):
            group = _group(numbers, start)
            for at in range(min(_AT_ONCE, count - start)):
                yield start + at, {field: _plain(group[column][at]) for field, column in chosen.places.items()}

    return _fields(_written(chosen, count, [key], folder, progress), items())


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, np.str_) else value


class _Chosen:
    """Which part of an item each field is; `places` has the key or the position by field, in the order declared."""

    def __init__(self, vertex_type: type[Vertex], names: Mapping[str, Any] | None) -> None:
        if not (isinstance(vertex_type, type) and issubclass(vertex_type, Vertex)):
            raise DataError(f"got {vertex_type!r} for the vertex type; expected a subclass of gridml.Vertex.")
        declared = describe(vertex_type)
        self.type_name = declared.name
        fields: dict[str, array | ragged] = {**declared.arrays, **declared.ragged}
        self.given = dict(names or {})
        if unknown := sorted(set(self.given) - set(fields)):
            raise DataError(f"names has {unknown[0]!r}, which is no field of {declared.name}; it has {list(fields)}.")
        wanted = [name for name in fields if self.given.get(name, name) is not None]
        if not wanted:
            raise DataError(f"{declared.name} declares no gridml.array, gridml.ragged or gridml.string to fill.")
        order = [name for name in vars(declared.cls) if name in wanted]
        self.fields = order + [name for name in wanted if name not in order]
        self._positions = any(place is not None for place in self.given.values())
        self.declared = {name: field for name, field in fields.items() if name in wanted}
        self.places: dict[str, Any] = {name: self.given.get(name, name) for name in self.fields}

    def of(self, item: Any, at: int) -> Item:
        """Return the value of each field in an item. Raises DataError where one is missing."""
        if isinstance(item, Mapping):
            places, there = self.places, item
        elif isinstance(item, tuple) or (isinstance(item, list) and (len(self.fields) > 1 or self._positions)):
            places = {name: self.given.get(name, position) for position, name in enumerate(self.fields)}
            there = dict(enumerate(item))
            if not self._positions and len(item) != len(self.fields):
                raise DataError(
                    f"item {at:,} is a {type(item).__name__} of {len(item)}; expected one value for each of the fields "
                    f'{self.fields}, or names={{"{self.fields[0]}": 0}}. {self._left_out()}'
                )
        else:
            if len(self.fields) != 1:
                raise DataError(
                    f"item {at:,} is {type(item).__name__}; expected a dict or a tuple with the fields {self.fields}. "
                    f"{self._left_out()}"
                )
            return {self.fields[0]: item}
        if missing := [name for name, place in places.items() if place not in there]:
            raise DataError(
                f"item {at:,} has no {places[missing[0]]!r} for the field {missing[0]}; it has {list(there)}. Say "
                f'where it is: names={{"{missing[0]}": ...}}. {self._left_out()}'
            )
        return {name: there[place] for name, place in places.items()}

    def _left_out(self) -> str:
        """How a field stays out that no item has: most often one that f changes."""
        changed = [name for name in self.fields if getattr(self.declared[name], "mutable", False)]
        return f'A field that no item has is left out by names={{"{(changed or self.fields)[-1]}": None}}.'


def _length(dataset: Any, caller: str) -> int:
    try:
        count = len(dataset)
    except TypeError as error:
        raise DataError(
            f"{caller} got {type(dataset).__name__}, which has no length; expected a map-style data set, whose items "
            f"are dataset[0] to dataset[len(dataset) - 1]. Write a stream to files first."
        ) from error
    except Exception as error:
        raise DataError(
            f"{caller} cannot have the length of {type(dataset).__name__}: {described(error)}", called_traceback(error)
        ) from error
    if not hasattr(dataset, "__getitem__"):
        raise DataError(f"{caller} got {type(dataset).__name__}, whose items cannot be had by number (dataset[0]).")
    if not count:
        raise DataError(f"{caller} got an empty {type(dataset).__name__}.")
    return count


def _item(dataset: Any, at: int) -> Any:
    try:
        return dataset[at]
    except GridmlError:
        raise
    except Exception as error:
        name = type(dataset).__name__
        missing = isinstance(error, IndexError | KeyError)
        problem = f"{name} has a length of {len(dataset):,} and no item" if missing else f"{name} cannot read item"
        raise DataError(f"{problem} {at:,}: {described(error)}", called_traceback(error)) from error


def _group(columns: Any, start: int) -> Any:
    """Return the columns of the items from `start` on."""
    try:
        return columns[start : start + _AT_ONCE]
    except Exception:
        for at in range(start, min(start + _AT_ONCE, len(columns))):
            _item(columns, at)  # which of them it is
        raise


def _bits(declared: Mapping[str, array | ragged], item: Item, at: int) -> bytes:
    """Return what tells an item from others, in the form in which it is written."""
    sha256 = hashlib.sha256()
    for name, field in declared.items():
        values = as_array(field, at, item[name])
        sha256.update(f"{name} {values.shape} ".encode() + values.tobytes())
    return sha256.digest()


def _written(
    chosen: _Chosen, count: int, key: list[Any], folder: str | os.PathLike[str] | None, progress: Report | None
) -> _Written:
    fields = chosen.declared
    form = {name: [field.dtype.str, list(field.shape)] for name, field in fields.items()}
    lists = sorted(name for name, field in fields.items() if isinstance(field, ragged))
    text = json.dumps([count, [*key, chosen.places], form, lists], default=str, sort_keys=True)
    return _Written(
        chosen.type_name,
        fields,
        count,
        hashlib.sha256(text.encode()).hexdigest()[:32],
        folders(os.environ)[0] / "fields" if folder is None else Path(folder),
        progress or log.info,
    )


def _fields(wanted: _Written, items: Iterable[tuple[int, Item]]) -> Fields:
    """Return the fields mapped; they are written first where they are not there."""
    place = wanted.folder / wanted.key
    if (fields := _open(wanted, place)) is not None:
        return fields
    temporary = wanted.folder / f".{wanted.key}.{os.getpid()}.{secrets.token_hex(4)}"
    wanted.report(f"writing {wanted.count:,} items of {wanted.type_name} to {place}")
    try:
        temporary.mkdir(parents=True)
        try:
            lengths = _write(wanted, temporary, items)
            (temporary / MANIFEST).write_text(json.dumps({"count": wanted.count, "lengths": lengths}))
            shutil.rmtree(place, ignore_errors=True)  # damaged, or it would have been opened
            temporary.rename(place)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        # Another process may have written the same meanwhile; then it is there.
        if (fields := _open(wanted, place)) is not None:
            return fields
        raise StorageError(
            f"the fields of {wanted.type_name} cannot be written to {place}: {error}. Free some space, set "
            f"GRIDML_CACHE, or give another folder=."
        ) from error
    if (fields := _open(wanted, place)) is None:
        raise StorageError(f"{place} was written and cannot be read back. Give another folder=.")
    return fields


def _write(wanted: _Written, folder: Path, items: Iterable[tuple[int, Item]]) -> dict[str, list[int]]:
    writers = {name: FieldWriter(folder, field) for name, field in wanted.fields.items()}
    try:
        for at, item in items:
            for name, value in item.items():
                writers[name].write(at, value)
            if at == 0:
                _check_space(sum(writer.nbytes for writer in writers.values()) * wanted.count, folder)
    finally:
        lengths = {name: writer.close() for name, writer in writers.items()}
    return lengths


def _check_space(nbytes: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise StorageError(
            f"the fields need about {nbytes:,} bytes (as many items as the first), and {folder.parent} has {free:,} "
            f"free. Free some space, set GRIDML_CACHE, or give another folder=."
        )


def _open(wanted: _Written, place: Path) -> Fields | None:
    try:
        lengths = json.loads((place / MANIFEST).read_text())["lengths"]
        return {n: opened(place, field, lengths[n]) for n, field in wanted.fields.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        wanted.report(f"{place} cannot be read and is written again: {described(error)}")
        return None
