"""Which old versions somebody may still stand on."""

from __future__ import annotations

from gridml.messages import Sync
from master.correspondence import Correspondence


def spoken(*workers: tuple[str, int]) -> Correspondence:
    found = Correspondence()
    for worker, base in workers:
        found.hear(Sync(worker, have=base), 1, 0.0).sent.add(base + 1)
    return found


def test_a_worker_stands_on_what_it_names_or_what_it_was_told_since() -> None:
    found = spoken(("w1", 3), ("w2", 7))
    assert found.standing(0.0) == {3, 4, 7, 8}
    found.hear(Sync("w1", have=4), 2, 1.0)  # its next letter: the answer to the last one has come
    assert found.standing(1.0) == {4, 7, 8}
    assert found.heard_at(1.0) == {"w1"}


def test_one_that_has_ended_stands_on_nothing() -> None:
    found = spoken(("w1", 3))
    found.end("w1")
    assert found.standing(0.0) == set()


def test_one_that_is_started_again_may_bring_what_stands_on_its_last_versions() -> None:
    found = spoken(("w1", 3))
    found.end("w1", heir_until_s=10.0)
    assert found.standing(9.0) == {3, 4}
    assert found.standing(11.0) == set()


def test_what_is_brought_settles_it() -> None:
    found = spoken(("w1", 3))
    found.end("w1", heir_until_s=10.0)
    found.hear(Sync("w1.1"), 1, 5.0)
    assert found.standing(5.0) == {-1}


def test_versions_of_an_earlier_master_are_kept_until_all_who_may_stand_on_them_have_spoken() -> None:
    found = Correspondence()
    found.await_survivors(["w1", "w2"], [5, 6])
    found.hear(Sync("w1", have=6), 9, 0.0)
    assert found.standing(0.0) == {5, 6}
    found.hear(Sync("w2", have=5), 4, 0.0)
    found.end("w2")
    assert found.standing(0.0) == {6}


def test_a_survivor_that_ends_without_a_word_may_stand_on_any_of_them() -> None:
    found = Correspondence()
    found.await_survivors(["w1"], [5, 6])
    found.end("w1", heir_until_s=10.0)
    assert found.standing(9.0) == {5, 6}


def test_those_that_nobody_waits_for_are_forgotten() -> None:
    found = spoken(("w1", 3), ("w2", 7))
    found.forget_others(["w2"])
    assert found.standing(0.0) == {7, 8}
