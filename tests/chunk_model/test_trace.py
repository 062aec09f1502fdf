"""Traces: accepted and rejected files (with the line), and the resulting lives."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunk_model.traces import Life, TraceError, TraceEvent, parse_trace, read_trace, trace_lives

GOOD = ["0,add,a", "0,add,b", "1500,remove,a", "1500,remove,b", "2000,add,a"]


def test_events_and_lives() -> None:
    trace = parse_trace(GOOD)
    assert trace[2] == TraceEvent(1.5, "a", False) and [event.joined for event in trace] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert trace_lives(trace) == [Life("a", 0.0, 1.5), Life("b", 0.0, 1.5), Life("a", 2.0, None)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_with_either_line_end_and_blank_lines(tmp_path: Path, end: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(end.join([*GOOD, "", ""]).encode())
    assert read_trace(path) == parse_trace(GOOD)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "has no events"),
        (["", " "], "has no events"),
        (["0,add,a", "10,remove"], "line 2: got '10,remove', expected milliseconds,add|remove,node"),
        (["0,add,a", "", "1.5,remove,a"], "line 3: got '1.5,remove,a'"),
        (["0,add,"], "line 1: got"),
        (["0,join,a"], "line 1: got"),
        (["-1,add,a"], "line 1: got"),
        (["time,event,node"], "line 1: got"),
        (["10,add,a", "5,add,b"], "line 2: time goes back from 0.01 s to 0.005 s"),
        (["0,add,a", "5,add,a"], "line 2: a is added although"),
        (["0,add,node17", "5,remove,node1"], "line 2: node1 is removed although"),
    ],
)
def test_a_bad_line_is_named(lines: list[str], says: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(lines, "p3.csv")
    assert str(caught.value).startswith("p3.csv") and says in str(caught.value)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"0,add,\xff\xfe")
    with pytest.raises(TraceError, match="is not text"):
        read_trace(path)


def test_a_file_that_gzip_packed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress("\n".join(GOOD).encode()))
    assert read_trace(path) == parse_trace(GOOD)


@given(st.lists(st.tuples(st.integers(0, 5000), st.sampled_from("abc")), max_size=30))
def test_lives_hold_every_event_once(steps: list[tuple[int, str]]) -> None:
    now, present, lines = 0, set[str](), ["0,add,z"]
    for wait, node in steps:
        now += wait
        lines.append(f"{now},{'remove' if node in present else 'add'},{node}")
        present ^= {node}
    trace = parse_trace(lines)
    stays = trace_lives(trace)
    starts = [TraceEvent(stay.start_s, stay.node, True) for stay in stays]
    ends = [TraceEvent(stay.end_s, stay.node, False) for stay in stays if stay.end_s is not None]
    assert sorted(map(repr, starts + ends)) == sorted(map(repr, trace))
    assert {stay.node for stay in stays if stay.end_s is None} == present | {"z"}
    assert all(stay.end_s is None or stay.start_s <= stay.end_s for stay in stays)
