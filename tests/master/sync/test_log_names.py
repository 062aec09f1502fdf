"""No worker can keep out the logged names of others, or fill the ledger with names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gridml.protocol.messages import MAX_LOGGED, Logged
from master.sync.pushes import MAX_NAMES, MAX_NAMES_ALONE, LoggedNames, admit_names

HONEST = [f"loss {number}" for number in range(MAX_LOGGED)]


class Ledger:
    """A ledger of names: (name, workers credited at its first version, and at its last)."""

    def __init__(self, *names: tuple[str, set[str], set[str]]) -> None:
        self._names = names

    def logged_names(self) -> list[tuple[str, set[str], set[str]]]:
        return [*self._names]


def names_of(*names: tuple[str, set[str], set[str]]) -> LoggedNames:
    return LoggedNames(Ledger(*names))  # type: ignore[arg-type]


def pushed(names: LoggedNames, worker: str, *logged: str) -> list[str]:
    """Return the logged values that are accepted from a push."""
    return [each.name for each in names.admitted(worker, [Logged(name, 1.0, 1) for name in logged], lambda _: None)]


def test_who_comes_first_cannot_take_all_names() -> None:
    names, warnings = names_of(), list[str]()
    for number in range(9):
        pushed(names, f"w1.{number}" if number else "w1", *(f"junk {number} {each}" for each in range(MAX_LOGGED)))
    assert pushed(names, "w2", *HONEST) == HONEST
    assert pushed(names, "w3", *HONEST, "junk 0 0", "junk 8 0") == [*HONEST, "junk 0 0"]
    logged = [Logged(name, 1.0, 1) for name in ("more", "still more")]
    assert [*names.admitted("w1", logged, warnings.append), *names.admitted("w1", logged, warnings.append)] == []


def test_the_warning_says_why_once() -> None:
    warnings: list[str] = []
    names = names_of()
    logged = [Logged(f"a{number}", 1.0, 1) for number in range(MAX_NAMES_ALONE + 2)]
    for _ in range(2):
        assert len(names.admitted("w1", logged, warnings.append)) == MAX_NAMES_ALONE
    assert warnings == ["w1 logs under more than 32 names that no other worker does; 'a32' and later ones are left out"]


def test_names_that_two_workers_log_count_against_neither() -> None:
    names = names_of()
    assert pushed(names, "w1", *HONEST) == pushed(names, "w2", *HONEST) == HONEST
    more = [f"more {number}" for number in range(MAX_LOGGED)]
    assert pushed(names, "w1", *more) == more
    assert pushed(names, "w2", "one too many") == []


def test_the_next_master_knows_whose_names_they_are() -> None:
    junk = [(f"junk {number}", {"w1"}, {"w1.1", "w3"}) for number in range(MAX_NAMES_ALONE)]
    assert pushed(names_of(*junk), "w1.2", "new") == []
    assert pushed(names_of(*junk), "w3", "new") == ["new"]
    both = [(name, {"w1"}, {"w2"}) for name in HONEST]
    assert pushed(names_of(*both), "w1", "new") == ["new"]


@given(st.lists(st.tuples(st.sampled_from(["w1", "w2", "w3"]), st.integers(0, 99)), max_size=300))
def test_bounds_hold_and_what_is_known_is_taken(pushes: list[tuple[str, int]]) -> None:
    names: dict[str, frozenset[str]] = {}
    for job, number in pushes:
        name = str(number)
        taken, reason = admit_names(name, job, names)
        assert reason and (taken or name not in names)
        if taken:
            names[name] = names.get(name, frozenset([job])) & {job}
        assert len(names) <= MAX_NAMES
    assert all(sum(jobs == {job} for jobs in names.values()) <= MAX_NAMES_ALONE for job in ("w1", "w2", "w3"))
