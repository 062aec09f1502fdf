"""The decision to place vertices, and the number of parts: each rule by itself, and properties of all choices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.placing.placing import (
    MAX_PARTS,
    MAX_READ_EDGES,
    MAX_SECTIONS,
    MIN_CHUNKS_PER_PART,
    MIN_ROW_BYTES,
    PlacementChoice,
    PlacingFacts,
    choose,
    worth_keeping,
)

USUAL = PlacingFacts("auto", 8, 100_000, 10**6, 50_000, 10**8, 256, 128)


def test_a_usual_graph_gets_a_part_for_each_worker() -> None:
    assert choose(USUAL) == (
        PlacementChoice("auto", 8, MAX_SECTIONS),
        f"8 parts, as many as workers, of {MAX_SECTIONS} sections",
    )


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({"requested": "none"}, "no placement"),
        ({"edges": 0}, "no vertex leads to rows"),
        ({"connected": True}, "connected"),
        ({"drop_last": True}, "drop_last"),
        ({"vertices": 2**31}, "2,147,483,647"),
        ({"rows": 2**31}, "2,147,483,647"),
        ({"workers": 1}, "one worker"),
        ({"vertices": 2 * 256 - 1}, "do not fill two parts"),
    ],
)
def test_what_cannot_be_placed_is_not_even_if_a_method_is_asked_for(changed: dict[str, Any], because: str) -> None:
    for requested in ("auto", "parsa"):
        chosen, reason = choose(replace(USUAL, **{"requested": requested, **changed}))
        assert chosen is None
        assert because in reason


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({"row_bytes": MIN_ROW_BYTES - 1}, "999,999 bytes"),
        ({"modules": True}, "modules"),
        ({"mapped": True, "edges": MAX_READ_EDGES + 1}, "10,000,001 edges from files into memory"),
    ],
)
def test_what_would_not_pay_is_placed_only_if_a_method_is_asked_for(changed: dict[str, Any], because: str) -> None:
    chosen, reason = choose(replace(USUAL, **changed))
    assert chosen is None
    assert because in reason
    assert choose(replace(USUAL, **changed, requested="parsa"))[0] == PlacementChoice("parsa", 8, MAX_SECTIONS)


def test_few_edges_in_files_and_many_in_memory_are_placed() -> None:
    for changed in ({"mapped": True, "edges": MAX_READ_EDGES}, {"edges": MAX_READ_EDGES + 1}):
        assert choose(replace(USUAL, **changed))[0] is not None


@given(st.integers(1, 10**6), st.integers(0, 10**7), st.integers(1, 10**5), st.sampled_from(["auto", "refined"]))
def test_parts_have_several_chunks_and_are_no_more_than_workers(
    workers: int, vertices: int, chunk: int, requested: str
) -> None:
    chosen, reason = choose(replace(USUAL, requested=requested, workers=workers, vertices=vertices, chunk=chunk))
    assert reason
    least = chunk * (MIN_CHUNKS_PER_PART if requested == "auto" else 1)
    if chosen is not None:
        assert chosen.method == requested
        assert 2 <= chosen.parts <= min(workers, MAX_PARTS)
        assert vertices // chosen.parts >= least
        more = chosen.parts + 1
        assert more > min(workers, MAX_PARTS) or vertices // more < least, "as many as allowed"


def test_a_part_may_be_one_chunk_only_if_a_method_is_asked_for() -> None:
    few = replace(USUAL, vertices=2 * MIN_CHUNKS_PER_PART * 256 - 1)
    assert choose(few) == (None, "2,047 vertices do not fill two parts of 1,024 (4 chunks)")
    assert choose(replace(few, requested="parsa")) == (
        PlacementChoice("parsa", 7, 2),
        "parsa was requested; 7 parts, each with 1 chunk or more, of 2 sections",
    )


@given(st.integers(1, 100), st.integers(0, 10**6), st.integers(1, 10**4))
def test_a_section_is_worth_a_message(workers: int, vertices: int, fewest: int) -> None:
    facts = replace(USUAL, workers=workers, vertices=vertices, fewest=fewest)
    chosen, reason = choose(facts)
    if chosen is not None:
        assert 1 <= chosen.sections <= MAX_SECTIONS
        assert chosen.sections == 1 or vertices // chosen.parts // chosen.sections >= fewest
        assert (chosen.sections == 1) is ("sections" not in reason)
        kept, _ = choose(replace(facts, shuffled=False))
        assert kept == replace(chosen, sections=1), "a graph's own order is not touched"


def test_parts_that_touch_as_much_as_by_chance_are_kept_only_if_they_were_asked_for() -> None:
    assert worth_keeping("auto", 96.0, 100.0) == (
        False,
        "parts would touch only 4% fewer bytes of rows than at random",
    )
    assert worth_keeping("parsa", 96.0, 100.0) == (True, "4% fewer bytes of rows than at random")
    assert worth_keeping("auto", 50.0, 100.0)[0]
    assert not worth_keeping("auto", 0.0, 0.0)[0]
