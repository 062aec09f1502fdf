"""What may differ between two masters of a run, and what may not."""

from __future__ import annotations

import dataclasses

from master.store.identity import FIXED, MAY_CHANGE, differences
from master.store.settings import Settings


def test_of_every_setting_it_is_decided_whether_it_may_change() -> None:
    assert {field.name for field in dataclasses.fields(Settings)} == FIXED.keys() | MAY_CHANGE.keys()
    assert not FIXED.keys() & MAY_CHANGE.keys()


def test_differences_are_said_in_words() -> None:
    then = {"data": {"Image.pixels": "a" * 64, "Image.old": "b" * 64}, "order": {"seed": 3}}
    now = {"data": {"Image.pixels": "c" * 64}, "order": {"seed": 3, "shuffle": "all"}}
    assert differences(then, then) == []
    assert differences(then, now) == [
        "Image.pixels holds other values than then (SHA-256 aaaaaaaaaaaa, now cccccccccccc)",
        f"Image.old was {'b' * 64}, and is None",
        "shuffle was None, and is all",
    ]
