"""Which old versions somebody may still stand on."""

from __future__ import annotations

from gridml.protocol.messages import Sync
from master.records import Correspondence


def spoken(*workers: tuple[str, int]) -> Correspondence:
    found = Correspondence()
    for worker, base in workers:
        found.told(found.hear(Sync(worker, have=base), 1), base + 1)
    return found


def standing(found: Correspondence, now: float) -> set[int]:
    return {version for version in range(20) if found.stands_on(version, now)}


def test_a_worker_stands_on_what_it_names_or_what_it_was_told_since() -> None:
    found = spoken(("w1", 3), ("w2", 7))
    assert standing(found, 0.0) == {3, 4, 7, 8}
    found.hear(Sync("w1", have=4), 2)  # its next message: the answer to the last one has come
    assert standing(found, 1.0) == {4, 7, 8}
    assert found.heard() == ["w1", "w2", "w1"]
    assert found.heard() == []


def test_one_that_has_ended_stands_on_nothing() -> None:
    found = spoken(("w1", 3))
    found.end("w1")
    assert standing(found, 0.0) == set()


def test_one_that_is_started_again_may_bring_what_stands_on_its_last_versions() -> None:
    found = spoken(("w1", 3))
    found.end("w1", heir_until_s=10.0)
    assert standing(found, 9.0) == {3, 4}
    assert standing(found, 11.0) == set()


def test_what_is_brought_settles_it() -> None:
    found = spoken(("w1", 3))
    found.end("w1", heir_until_s=10.0)
    found.hear(Sync("w1.1"), 1)
    assert standing(found, 5.0) == set()


def test_versions_of_an_earlier_master_are_kept_until_all_who_may_stand_on_them_have_spoken() -> None:
    found = Correspondence()
    found.await_survivors(["w1", "w2"], [5, 6])
    found.hear(Sync("w1", have=6), 9)
    assert standing(found, 0.0) == {5, 6}
    found.hear(Sync("w2", have=5), 4)
    found.end("w2")
    assert standing(found, 0.0) == {6}


def test_a_survivor_that_ends_without_a_word_may_stand_on_any_of_them() -> None:
    found = Correspondence()
    found.await_survivors(["w1"], [5, 6])
    found.end("w1", heir_until_s=10.0)
    assert standing(found, 9.0) == {5, 6}


def test_those_that_nobody_waits_for_are_forgotten() -> None:
    found = spoken(("w1", 3), ("w2", 7))
    found.forget_others(["w2"])
    assert standing(found, 0.0) == {7, 8}
