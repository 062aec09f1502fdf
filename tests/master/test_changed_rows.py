"""Rows that travel as changed elements, in whole runs under kills: both ends have the same rows, bit for bit."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gridml
from gridml.caching.master_copy import ReplicatedRows
from gridml.protocol import changes
from gridml.protocol.changes import ChangedElements
from gridml.protocol.push import ChangedRows, Changes, PushContent, ReplicaPart, RowValues
from master.store.reader import opened
from master.sync import pushes
from master.sync.rows import RowSupply

Key = tuple[bytes, ...]


def key_of(changed: ChangedElements, ids: Any) -> Key:
    return (ids.tobytes(), *(part.tobytes() for part in changed.parts.values()))


class Watched:
    """Compares what one end makes of changes with the rows that the other end had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        #: by changes: the rows that they give, as bytes; more than one where changes are alike by chance
        self.down: defaultdict[Key, set[bytes]] = defaultdict(set)
        self.up: defaultdict[Key, set[bytes]] = defaultdict(set)
        self.compared = {"up": 0, "down": 0}
        monkeypatch.setattr(changes, "OVERHEAD_BYTES", 0)  # small rows, too
        supply, whole = RowSupply._changes, ReplicatedRows.whole
        as_changes, reconstruct = ReplicatedRows.as_changes, pushes.reconstruct

        def supplied(this: RowSupply, *arguments: Any) -> dict[str, ChangedRows]:
            found = supply(this, *arguments)
            for type_name, rows in found.items():
                values = this._store.replica.state.rows(type_name, rows.ids)
                for name, each in rows.changes.items():
                    self.down[key_of(each, rows.ids)].add(values[name].tobytes())
            return found

        def received(this: ReplicatedRows, part: ReplicaPart) -> ReplicaPart:
            got = whole(this, part)
            for type_name, rows in part.changed.items():
                last = got.rows[type_name].take(slice(len(got.rows[type_name].ids) - len(rows.ids), None))
                for name, each in rows.changes.items():
                    assert last.fields[name].tobytes() in self.down[key_of(each, rows.ids)]
                    self.compared["down"] += 1
            return got

        def pushed(this: ReplicatedRows, rows: Mapping[str, RowValues]) -> tuple[dict[str, RowValues], Changes]:
            found = as_changes(this, rows)
            for type_name, fields in found[1].items():
                for name, each in fields.items():
                    self.up[key_of(each, rows[type_name].ids)].add(rows[type_name].fields[name].tobytes())
            return found

        def merged(content: PushContent, *arguments: Any) -> ReplicaPart:
            part = reconstruct(content, *arguments)
            for type_name, fields in content.changes.items():
                rows = part.rows[type_name]
                for name, each in fields.items():
                    assert rows.fields[name].tobytes() in self.up[key_of(each, rows.ids)]
                    self.compared["up"] += 1
            return part

        monkeypatch.setattr(RowSupply, "_changes", supplied)
        monkeypatch.setattr(ReplicatedRows, "whole", received)
        monkeypatch.setattr(ReplicatedRows, "as_changes", pushed)
        monkeypatch.setattr(pushes, "reconstruct", merged)


def play(program: Path, root: Path, seed: int, **options: Any) -> None:
    costs = {"cost": "t_x=0.5,t_s=1,push=0.2", "lifetime": "exponential(12s)"}
    gridml.simulate(program, seed=seed, run_dir=root, **{"workers": 5, **costs, **options})


def bytes_of(root: Path) -> tuple[int, int]:
    with opened(root) as ledger:
        up, down = ledger.execute("SELECT sum(bytes_up), sum(bytes_down) FROM workers").fetchone()
    return up, down


@pytest.mark.real
@pytest.mark.parametrize("seed", range(3))
def test_both_ends_have_the_same_rows_whatever_dies(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    watched = Watched(monkeypatch)
    play(programs / "topics.py", tmp_path / "run", seed)
    assert min(watched.compared.values()) > 20
    with opened(tmp_path / "run") as ledger:
        metrics = ledger.execute("SELECT metrics FROM epochs").fetchall()
    assert {(found["counted"], found["apart"]) for found in (json.loads(text) for (text,) in metrics)} == {(1789, 0)}


def test_one_worker_ends_at_the_same_values_with_fewer_bytes(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, overhead in (("changes", 0), ("whole", 1 << 60)):
        monkeypatch.setattr(changes, "OVERHEAD_BYTES", overhead)
        play(programs / "topics.py", tmp_path / name, 1, workers=1, lifetime=None, push_every=16)
    finals = [(tmp_path / name / "final.safetensors").read_bytes() for name in ("changes", "whole")]
    assert finals[0] == finals[1]
    less, more = bytes_of(tmp_path / "changes"), bytes_of(tmp_path / "whole")
    assert less[0] < more[0]
