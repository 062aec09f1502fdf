"""Map-style data sets of torch and Hugging Face as fields of a vertex type: read once, written to disk, memory-mapped.

Only one item, or one group of items, is in memory at a time. A key identifies fields that are already written. For a
data set of Hugging Face, the key contains its fingerprint. For any other data set, the key contains its class, its
length and the contents of `SAMPLED` items.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import secrets
import shutil
from array import array as numbers
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.dataclass_json import loads
from gridml.datasets.pinned import Report, folders
from gridml.errors import DataError, GridmlError, StorageError
from gridml.model.program import called_traceback
from gridml.model.ragged import Ragged, converted, ragged
from gridml.model.vertex import Vertex, array, describe
from gridml.protocol.foreign import described

log = logging.getLogger("gridml.datasets")

SAMPLED = 64  # number of items whose contents the key covers, evenly spaced over the data set
MANIFEST = "fields.json"
_AT_ONCE = 256  # items of a Hugging Face data set in one read, which returns an array for each column
_BUFFER_BYTES = 1 << 20

Fields = dict[str, NDArray[Any] | Ragged]
Item = dict[str, Any]  # the value of each field in one item, by name of the field


def from_torch(
    dataset: Any,
    vertex_type: type[Vertex],
    *,
    names: Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
) -> Fields:
    """Return the array, ragged and string fields of `vertex_type` from a torch map-style data set (`len` and `[i]`).

    An item is a dict by field name, or a tuple with the fields in the order of declaration. If there is a single field,
    an item can also be the field's value, even a list. Each value is a tensor, an array, a number, or a str. Values are
    converted to the declared dtype if no information is lost.

    `names` maps a field to its key in an item, if the key is not the field's name, or to its position in an item, if
    the positions are not those of the declaration. If items lack a field, map the field to None, and pass its values to
    `graph.add` separately.

    Usage: `graph.add(Image, network=network, **gridml.from_torch(data, Image))`.

    The fields are written once, below `folder` (default: `fields` in the folder of cached data sets, see `mnist`), and
    memory-mapped from there. A later call finds them by the class and length of the data set, the declaration of the
    fields, and the contents of 64 items. If only items outside these 64 have changed, pass another `folder`.

    Raises DataError for an item that does not fit the declaration, for an item that cannot be read (with the traceback
    of the data set's own code, and its error as the cause), for a data set without a length, and for a data set whose
    items change between reads: random transforms belong in f. Raises StorageError if the disk cannot hold the fields.
    """
    count = _length(dataset, "from_torch")
    wanted = _Wanted(vertex_type, names)
    sampled = hashlib.sha256()
    for at in dict.fromkeys(np.linspace(0, count - 1, min(SAMPLED, count)).astype(int).tolist()):
        bits = wanted.bits(_item(dataset, at), at)
        if at == 0 and bits != wanted.bits(_item(dataset, at), at):
            raise DataError(
                f"item 0 of {type(dataset).__name__} differs each time it is read. Fields are written once: leave "
                f"random transforms out of the data set, and do them in f."
            )
        sampled.update(bits)
    key = [type(dataset).__module__, type(dataset).__qualname__, sampled.hexdigest()]
    items = (wanted.of(_item(dataset, at), at) for at in range(count))
    return wanted.mapped(items, count, key, folder, progress or log.info)


def from_huggingface(
    dataset: Any,
    vertex_type: type[Vertex],
    *,
    names: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
) -> Fields:
    """Return the array, ragged and string fields of `vertex_type` from a split of a Hugging Face data set.

    A field is filled from the column of the same name, or from the column that `names` gives. Images keep their stored
    layout, (height, width, channels). A later call finds the written fields by the data set's own fingerprint. All else
    is as for `from_torch`. Also raises DataError for several splits and for a stream.
    """
    columns = getattr(dataset, "column_names", None)
    if isinstance(columns, dict):
        raise DataError(f'from_huggingface got the splits {sorted(columns)}; give one of them, as in dataset["train"].')
    if not isinstance(columns, list) or not hasattr(dataset, "with_format"):
        raise DataError(f"from_huggingface got {type(dataset).__name__}; expected a datasets.Dataset.")
    count = _length(dataset, "from_huggingface")
    wanted = _Wanted(vertex_type, names)
    if missing := [field for field, column in wanted.places.items() if column not in columns]:
        raise DataError(
            f"the data set has no column {wanted.places[missing[0]]!r}; it has {columns}. Say which column fills "
            f'the field: names={{"{missing[0]}": "{columns[0]}"}}.'
        )
    key = ["huggingface", str(getattr(dataset, "_fingerprint", secrets.token_hex(16)))]
    numbers = dataset.select_columns(list(dict.fromkeys(wanted.places.values()))).with_format("numpy")

    def items() -> Iterator[Item]:
        for start in range(0, count, _AT_ONCE):
            stop = min(start + _AT_ONCE, count)
            try:
                group = numbers[start:stop]
            except Exception:
                for at in range(start, stop):
                    _item(numbers, at)  # raises DataError with the number of the item
                raise
            yield from ({name: group[place][at] for name, place in wanted.places.items()} for at in range(stop - start))

    return wanted.mapped(items(), count, key, folder, progress or log.info)


class _Wanted:
    """The fields to fill.

    `declared` maps the name of each field to its declaration. `places` maps the name to the field's key or position in
    an item, in the order of declaration.
    """

    def __init__(self, vertex_type: type[Vertex], names: Mapping[str, Any] | None) -> None:
        if not (isinstance(vertex_type, type) and issubclass(vertex_type, Vertex)):
            raise DataError(f"got {vertex_type!r} for the vertex type; expected a subclass of gridml.Vertex.")
        declared = describe(vertex_type)
        self.type_name = declared.name
        fields: dict[str, array | ragged] = {**declared.arrays, **declared.ragged}
        self._given = dict(names or {})
        if unknown := sorted(set(self._given) - set(fields)):
            raise DataError(f"names has {unknown[0]!r}, which is no field of {declared.name}; it has {list(fields)}.")
        self.declared = {name: field for name, field in fields.items() if self._given.get(name, name) is not None}
        if not self.declared:
            raise DataError(f"{declared.name} declares no gridml.array, gridml.ragged or gridml.string to fill.")
        own = [name for name in vars(declared.cls) if name in self.declared]
        self.places = {name: self._given.get(name, name) for name in dict.fromkeys([*own, *self.declared])}
        self._positions = any(place is not None for place in self._given.values())
        changed = [name for name in self.places if getattr(self.declared[name], "mutable", False)]
        unset = (changed or [*self.places])[-1]  # the field that items most likely lack: one that f changes, if any
        self._left_out = f'A field that no item has is left out by names={{"{unset}": None}}.'

    def of(self, item: Any, at: int) -> Item:
        """Return the value of each field in an item. Raises DataError if one is missing."""
        fields, form = list(self.places), type(item).__name__
        if isinstance(item, Mapping):
            places, values = self.places, item
        elif isinstance(item, tuple) or (isinstance(item, list) and (len(fields) > 1 or self._positions)):
            places = {name: self._given.get(name, position) for position, name in enumerate(fields)}
            values = dict(enumerate(item))
            if not self._positions and len(item) != len(fields):
                raise DataError(
                    f"item {at:,} is a {form} of {len(item)}; expected one value for each of the fields {fields}, or "
                    f'names={{"{fields[0]}": 0}}. {self._left_out}'
                )
        elif len(fields) == 1:
            return {fields[0]: item}
        else:
            raise DataError(
                f"item {at:,} is {form}; expected a dict or a tuple with the fields {fields}. {self._left_out}"
            )
        if missing := [name for name, place in places.items() if place not in values]:
            raise DataError(
                f"item {at:,} has no {places[missing[0]]!r} for the field {missing[0]}; it has {list(values)}. Say "
                f'where it is: names={{"{missing[0]}": ...}}. {self._left_out}'
            )
        return {name: values[place] for name, place in places.items()}

    def value(self, name: str, at: int, value: Any) -> NDArray[Any]:
        """Convert the value of a field in item `at` to its stored form. Raises DataError if the value does not fit the
        declaration."""
        field = self.declared[name]
        if isinstance(value, np.ma.MaskedArray):
            raise DataError(
                f"item {at:,} has a masked array as {name}, whose mask would be lost. Give its filled(...)."
            )
        if hasattr(value, "detach"):  # a torch tensor, without importing torch
            value = value.detach().cpu()
            if str(value.dtype) == "torch.bfloat16":  # NumPy has no bfloat16; float32 represents it exactly
                value = value.float()
        name = f"item {at:,}: {self.type_name}.{name}"
        try:
            if isinstance(field, ragged):
                return field.values_of(name, value)
            values = np.asarray(value)
            if values.dtype == field.dtype and values.shape == field.shape:
                return values
            got = (
                f"{name} got {type(value).__name__} of {values.dtype} and shape {values.shape}; expected {field.dtype}"
            )
            if values.dtype.kind not in "biuf":
                hint = " Declare it as gridml.string()." if isinstance(value, str) else ""
                raise DataError(f"{got} of shape {field.shape}.{hint}")
            if values.shape != field.shape:
                raise DataError(
                    f"{got} of shape {field.shape}, as declared. All items of gridml.array have one shape: make them "
                    f"so in the data set, or declare it as gridml.ragged, whose length may differ from item to item."
                )
            return converted(name, np.atleast_1d(values), field.dtype).reshape(field.shape)
        except GridmlError as error:
            raise DataError(str(error)) from error
        except Exception as error:  # an object's own __array__ may raise anything
            raise DataError(f"{name} got {type(value).__name__}, which is no array: {described(error)}") from error

    def bits(self, item: Any, at: int) -> bytes:
        """Return a digest of an item in its stored form."""
        sha256, parts = hashlib.sha256(), self.of(item, at)
        for name in self.declared:
            values = self.value(name, at, parts[name])
            sha256.update(f"{name} {values.shape} ".encode() + values.tobytes())
        return sha256.digest()

    def mapped(
        self, items: Iterable[Item], count: int, key: list[str], folder: str | os.PathLike[str] | None, report: Report
    ) -> Fields:
        """Return the memory-mapped fields. Writes them first if necessary. `key` identifies the data set."""
        form = {name: [field.dtype.str, list(field.shape)] for name, field in self.declared.items()}
        lists = sorted(name for name, field in self.declared.items() if isinstance(field, ragged))
        text = json.dumps([count, [key, self.places], form, lists], default=str, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        place = (folders(os.environ)[0] / "fields" if folder is None else Path(folder)) / name
        if (fields := self._open(place, report)) is not None:
            return fields
        report(f"writing {count:,} items of {self.type_name} to {place}")
        failed = f"{place} was written and cannot be read back. Give another folder=."
        cause: OSError | None = None
        temporary = place.with_name(f".{name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            temporary.mkdir(parents=True)
            lengths = self._write(temporary, items, count)
            (temporary / MANIFEST).write_text(json.dumps({"count": count, "lengths": lengths}))
            shutil.rmtree(place, ignore_errors=True)  # if it exists, it is damaged: it could not be opened above
            temporary.rename(place)
        except OSError as error:
            failed = f"the fields of {self.type_name} cannot be written to {place}: {error}. Free some space, set "
            failed += "GRIDML_CACHE, or give another folder=."
            cause = error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        # Tried even if writing failed: another process may have written the same fields.
        if (fields := self._open(place, report)) is None:
            raise StorageError(failed) from cause
        return fields

    def _write(self, folder: Path, items: Iterable[Item], count: int) -> dict[str, list[int]]:
        """Write the fields. Return, by field, the number of values and, for a ragged field, the number of offsets."""
        with contextlib.ExitStack() as stack:
            paths = {name: folder / f"{name}.values" for name in self.declared}
            files = {name: stack.enter_context(path.open("xb", _BUFFER_BYTES)) for name, path in paths.items()}
            # array.array takes 8 bytes for each offset; a list would take 36.
            ends = {name: numbers("q", [0]) for name, field in self.declared.items() if isinstance(field, ragged)}
            for at, item in enumerate(items):
                for name, value in item.items():
                    values = self.value(name, at, value)
                    files[name].write(values.tobytes())
                    if name in ends:
                        ends[name].append(ends[name][-1] + len(values))
                if at == 0:
                    nbytes, free = sum(file.tell() for file in files.values()) * count, shutil.disk_usage(folder).free
                    if nbytes > free:
                        raise StorageError(
                            f"the fields need about {nbytes:,} bytes (if all items are as large as the first), and "
                            f"{folder.parent} has {free:,} free. Free some space, set GRIDML_CACHE, or give another "
                            f"folder=."
                        )
        for name, offsets in ends.items():
            np.frombuffer(offsets, np.int64).tofile(folder / f"{name}.offsets")
        return {name: [ends[name][-1], count + 1] if name in ends else [count] for name in self.declared}

    def _open(self, place: Path, report: Report) -> Fields | None:
        try:
            lengths = loads((place / MANIFEST).read_bytes())["lengths"]
            fields: Fields = {}
            for name, field in self.declared.items():
                fields[name] = values = _mapped(place / f"{name}.values", field.dtype, (lengths[name][0], *field.shape))
                if isinstance(field, ragged):
                    offsets = _mapped(place / f"{name}.offsets", np.dtype(np.int64), (lengths[name][1],))
                    fields[name] = Ragged(values, offsets, field.text)
            return fields
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
            report(f"{place} cannot be read and is written again: {described(error)}")
            return None


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    size = math.prod(shape) * dtype.itemsize
    if path.stat().st_size != size:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, expected {size:,}")
    return np.memmap(path, dtype, "r", shape=shape) if size else np.empty(shape, dtype)


def _length(dataset: Any, caller: str) -> int:
    got = f"{caller} got {type(dataset).__name__}"
    try:
        count = len(dataset)
    except TypeError as error:
        raise DataError(
            f"{got}, which has no length; expected a map-style data set, whose items are dataset[0] to "
            f"dataset[len(dataset) - 1]. Write a stream to files first."
        ) from error
    except Exception as error:
        words = f"{caller} cannot have the length of {type(dataset).__name__}: {described(error)}"
        raise DataError(words, called_traceback(error)) from error
    if not hasattr(dataset, "__getitem__"):
        inner = ": give its data set, loader.dataset" if hasattr(dataset, "dataset") else ""
        raise DataError(f"{got}, whose items cannot be read by index (dataset[0]){inner}.")
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
