"""Positions in files: damage hits the named class, and every byte of a file belongs to a class."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from benchmarks.damage import chosen_files, damages, flip, positions, whole_file
from benchmarks.exact_run import CHAINS, MOMENTS, interrupt


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    interrupt(CHAINS[0], folder / "root", folder / "image", MOMENTS[1])
    return folder / "image"


def test_one_bit_is_flipped() -> None:
    assert flip(9)(b"\x00\x00") == b"\x00\x02"
    assert flip(9)(flip(9)(b"ab")) == b"ab"


def test_every_damage_changes_the_file() -> None:
    content = bytes(range(1, 250))
    for how, apply in whole_file(len(content)).items():
        assert apply(content) != content, how


def test_every_sort_of_file_is_damaged(image: Path) -> None:
    names = chosen_files(image)
    assert {"ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.backup.db", "settings.json"} <= set(names)
    assert {Path(name).parent.name for name in names} >= {"versions", "fields", "program"}


def test_every_byte_has_a_class(image: Path) -> None:
    for name in chosen_files(image):
        content = (image / name).read_bytes()
        covered = np.zeros(len(content), bool)
        for spans in positions(name, content, image).values():
            for span in spans:
                covered[span.start : span.stop] = True
        missing = np.flatnonzero(~covered)
        assert name.endswith("-wal") or not len(missing), (name, missing[:5])


def test_cells_are_those_of_their_table(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE one (text TEXT)")
        db.execute("CREATE TABLE two (text TEXT)")
        db.executemany("INSERT INTO two VALUES (?)", [(f"word {number} " * 20,) for number in range(100)])
    db.close()
    content = path.read_bytes()
    spans = positions("some.db", content, tmp_path)
    cells = b"".join(content[span.start : span.stop] for span in spans["two: cells"])
    assert cells.count(b"word 99 ") == 20 and cells.count(b"word 0 ") == 20
    assert "one: cells" not in spans and spans["two: inner cells"]


def test_a_seed_gives_the_same_damages(image: Path) -> None:
    once, again = ([(d.file, d.how) for d in damages(image, 1, random.Random(5))] for _ in range(2))
    assert once == again
    assert len(once) > 200
