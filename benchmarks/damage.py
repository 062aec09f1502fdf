"""Damage to the files of a run: the positions of flipped bits in each format, derived from the bytes of the file
itself.

A class of positions is a range of bytes that one part of a reader parses: a field of a header, the cells of one table.
"""

from __future__ import annotations

import random
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Spans = dict[str, list[range]]  # by class: the bytes that belong to it

WAL_HEADER = {"magic": (0, 4), "format": (4, 8), "page size": (8, 12), "checkpoint": (12, 16), "salt": (16, 24),
              "checksum": (24, 32)}  # fmt: skip
WAL_FRAME = {"page number": (0, 4), "commit size": (4, 8), "salt": (8, 16), "checksum": (16, 24)}
LEAF_TABLE, INNER_TABLE, LEAF_INDEX, INNER_INDEX = 13, 5, 10, 2  # the first byte of a b-tree's page


@dataclass(frozen=True)
class Damage:
    """One change of one file of a run."""

    file: str
    position: str
    how: str  #: the name of the change
    apply: Callable[[bytes], bytes | None]  #: takes the bytes and returns others; None: the file is deleted

    def do(self, root: Path) -> None:
        """Damage the file in the run directory `root`."""
        path = root / self.file
        content = self.apply(path.read_bytes())
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)


def flip(bit: int) -> Callable[[bytes], bytes]:
    """Return a function that flips bit `bit` of a file's content."""

    def flipped(content: bytes) -> bytes:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        return bytes(damaged)

    return flipped


def whole_file(length: int) -> dict[str, Callable[[bytes], bytes | None]]:
    """Return the damages to a file as a whole, or to a block of it."""
    middle = length // 2
    block = min(4096, max(1, length // 4))
    at = middle // block * block
    return {
        "deleted": lambda content: None,
        "emptied": lambda content: b"",
        "cut in half": lambda content: content[:middle],
        "a byte short": lambda content: content[:-1],
        "a block longer": lambda content: content + bytes(4096),
        "zeroed": lambda content: bytes(len(content)),
        "a block zeroed": lambda content: content[:at] + bytes(block) + content[at + block :],
        "last block zeroed": lambda content: content[:-block] + bytes(block),
    }


def damages(root: Path, samples: int, rng: random.Random) -> Iterator[Damage]:
    """Yield every damage to the run in `root`: `samples` flipped bits in each class of positions of each file, and
    damages to whole files. Of files of one kind (versions, patches) the oldest and the newest are damaged."""
    for name in chosen_files(root):
        content = (root / name).read_bytes()
        for position, spans in positions(name, content, root).items():
            length = sum(len(span) for span in spans)
            for _ in range(min(samples, 8 * length)):
                at = _nth(spans, rng.randrange(length))
                bit = rng.randrange(8)
                yield Damage(name, position, f"bit {bit} of byte {at}", flip(8 * at + bit))
        for how, apply in whole_file(len(content)).items():
            yield Damage(name, "whole file", how, apply)


def chosen_files(root: Path) -> list[str]:
    """Return the files of a run that a master reads, by their paths in it: the oldest and the newest of each folder and
    suffix."""
    alike = defaultdict(list)
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.is_file() and path.stat().st_size and name.parts[0] not in ("logs", "mail", "chunks", "README.txt"):
            stem = path.name.split("-")[0] if name.parts[0] == "fields" else path.suffix
            alike[name.parent if len(name.parts) > 1 else name, stem].append(str(name))
    return [name for names in alike.values() for name in dict.fromkeys((names[0], names[-1]))]


def positions(name: str, content: bytes, root: Path) -> Spans:
    """Return the classes of positions of a file."""
    if name.endswith("-wal"):
        return _of_wal(content)
    if name.endswith(".db"):
        return _of_database(root / name, content)
    if name.endswith(".safetensors"):
        start = 8 + int.from_bytes(content[:8], "little")
        return {"length": [range(8)], "header": [range(8, start)], "tensors": [range(start, len(content))]}
    if name.endswith(".npy"):
        start = 10 + int.from_bytes(content[8:10], "little")
        return {"magic": [range(10)], "header": [range(10, start)], "values": [range(start, len(content))]}
    return {"text": [range(len(content))]}


def _nth(spans: list[range], n: int) -> int:
    for span in spans:
        if n < len(span):
            return span[n]
        n -= len(span)
    raise IndexError(n)


def _of_wal(content: bytes) -> Spans:
    """Return the positions of a write-ahead log (SQLite's file format, section 4): a header, and frames of 24 bytes and
    a page."""
    spans: Spans = {f"header: {part}": [range(*at)] for part, at in WAL_HEADER.items()}
    page = int.from_bytes(content[8:12], "big")
    starts = range(32, len(content) - 24 - page + 1, 24 + page)
    commits = [start for start in starts if any(content[start + 4 : start + 8])]
    places = {"first frame": starts[:1], "middle frames": starts[1:-3], "last frames": starts[-3:],
              "last commit": commits[-1:]}  # fmt: skip
    for place, frames in places.items():
        for part, (first, last) in WAL_FRAME.items():
            spans[f"{place}: {part}"] = [range(start + first, start + last) for start in frames]
        spans[f"{place}: data"] = [range(start + 24, start + 24 + page) for start in frames]
    return {position: ranges for position, ranges in spans.items() if ranges}


def _of_database(path: Path, content: bytes) -> Spans:
    """Return the positions of a database (SQLite's file format, section 1): each page's kind follows from the roots of
    the tables."""
    page = int.from_bytes(content[16:18], "big")
    spans: Spans = defaultdict(list)
    spans["header"] = [range(16, 100)]
    spans["header: magic"] = [range(16)]
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    roots = {"schema": 1, **dict(database.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage"))}
    database.close()
    seen: set[int] = set()
    for name, root in roots.items():
        _of_tree(name.replace("sqlite_autoindex_", "index of "), root, page, content, spans, seen)
    for number in set(range(1, len(content) // page + 1)) - seen:
        spans["free pages and overflow"].append(range((number - 1) * page, number * page))
    return spans


def _of_tree(name: str, number: int, page: int, content: bytes, spans: Spans, seen: set[int]) -> None:
    base = (number - 1) * page
    if base + page > len(content) or number in seen:  # pages past the end are in the WAL only
        return
    seen.add(number)
    header = base + (100 if number == 1 else 0)
    kind = content[header]
    long = 12 if kind in (INNER_TABLE, INNER_INDEX) else 8
    cells = int.from_bytes(content[header + 3 : header + 5], "big")
    cells_start = base + (int.from_bytes(content[header + 5 : header + 7], "big") or 65536)
    pointers = header + long
    spans[f"{name}: page header"].append(range(header, pointers))
    spans[f"{name}: free bytes"].append(range(pointers + 2 * cells, cells_start))
    if cells:
        spans[f"{name}: cell pointers"].append(range(pointers, pointers + 2 * cells))
        spans[f"{name}: cells"].append(range(cells_start, base + page))
    if kind not in (INNER_TABLE, INNER_INDEX):
        return
    spans[f"{name}: inner cells"].append(range(cells_start, base + page))
    children = [int.from_bytes(content[header + 8 : header + 12], "big")]
    for at in range(pointers, pointers + 2 * cells, 2):
        cell = base + int.from_bytes(content[at : at + 2], "big")
        children.append(int.from_bytes(content[cell : cell + 4], "big"))
    for child in children:
        _of_tree(name, child, page, content, spans, seen)
