"""Invalid files of lives and traces: one message, quickly, for any content."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chunk_model import prices, traces

PROGRAM = Path(__file__).parents[2] / "programs" / "counts.py"
HEAD = "duration_s,ended\n"
PRICES = ",".join(prices.COLUMNS) + "\n"
TICKS = '{"metadata":{"gap_seconds":%s},"data":%s}'

LIVES = [
    ("", "expected the columns duration_s,ended, got nothing"),
    ("a,b\n1,2\n", "expected the columns duration_s,ended, got the columns 'a,b'"),
    (HEAD, "has a header and no lives"),
    (HEAD + "5\n", "got 1 fields, expected 2"),
    (HEAD + "5,1,2\n", "got 3 fields, expected 2"),
    (HEAD + "-5,1\n", "must be a number of seconds, at least 0, got '-5'"),
    (HEAD + "nan,1\n", "got 'nan'"),
    (HEAD + "inf,1\n", "got 'inf'"),
    (HEAD + "1e300,1\n", "at most 1e+12, got '1e300'"),
    (HEAD + "x,1\n", "got 'x'"),
    (HEAD + "\x1b[31m,1\n", r"got '\x1b[31m'"),
    (HEAD + "5,maybe\n", "ended must be 1, 0, true or false, got 'maybe'"),
    (HEAD + "x" * 200_000 + ",1\n", "cannot be read as CSV: field larger than field limit"),
    ("duration_s,duration_s,ended\n1,2,1\n", "got a column twice"),
    ("duration_s,ended,end_at_s\n5,1,nan\n", "end_at_s must be a number of seconds, got 'nan'"),
    (b"\xff\xfe\0", "is not text"),
    (b"\x1f\x8bhello", "is damaged"),
]

TRACES = [
    ("", "is empty; expected a trace"),
    ("hello\n", "is a trace of no known format: it begins 'hello'"),
    (b"\xfe\0\1", "is not text"),
    (gzip.compress(b"1000,add,a\n", mtime=0)[:-5], "is damaged"),
    (b"\x1f\x8bhello", "is damaged"),
    ("5,add,a\n4,remove,a\n", "time goes back from 0.005 s to 0.004 s"),
    ("1,add,a\n2,add,a\n", "a is added although it is there already"),
    ("1,remove,a\n", "a is removed although it is not there"),
    ("1.5,add,a\n", "expected milliseconds,add|remove,node"),
    ("9" * 400 + ",add,a\n", "expected milliseconds,add|remove,node"),
    ("1,add,a\n\x1b[31m\n", r"got '\x1b[31m', expected milliseconds"),
    ("{", "not JSON"),
    ("{" + '"a":{' * 100_000, "cannot be read as JSON"),
    (TICKS % (60, "[" + "9" * 5000 + "]"), "cannot be read as JSON"),
    (TICKS % (0, "[1]"), "gap_seconds is 0; expected the seconds between two counts, above 0"),
    (TICKS % ("NaN", "[1,2]"), "gap_seconds is nan"),
    (TICKS % (1, "[-1]"), "data[0]: got -1, expected 0 to 1,000,000 instances"),
    (TICKS % (1, '["x"]'), "data[0]: got 'x', expected"),
    (TICKS % (60, "[0,0]"), "has no lives: no machine was ever up"),
    ("2021-99-99, 13:07:45, 80\n", "which is no moment"),
    ("2021-12-10, 13:07:45, 99999999999\n", "expected such as 2021-12-10"),
    (PRICES, "has no prices; expected such as"),
    (PRICES + "x,a,b,c,1\n", "expected such as"),
    (PRICES + "2020-01-01,a,b,c,nan\n", "expected such as"),
    (PRICES + "2020-01-01," + "a" * 200_000 + ",b,c,1\n", "cannot be read as CSV: field larger than field limit"),
    (PRICES + "0001-01-01,a,b,c,1\n9999-12-31,a,b,c,1\n", "expected at most 2,000,000"),
]


def put(content: str | bytes) -> None:
    Path("f").write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(("content", "said"), LIVES)
def test_lives(mistake: Callable[..., str], content: str | bytes, said: str) -> None:
    put(content)
    mistake(["plan", "--t-exec", "0.05", "--lifetimes", "f"], 2, "--lifetimes: f", said)


@pytest.mark.parametrize(("content", "said"), TRACES)
def test_traces(mistake: Callable[..., str], content: str | bytes, said: str) -> None:
    put(content)
    mistake(["plan", "--t-exec", "0.05", "--trace", "f"], 2, "--trace: f", said)


ODD: list[tuple[Callable[[], object], str]] = [
    (lambda: os.mkfifo("f"), "it is no regular file"),
    (lambda: Path("f").symlink_to("f"), "Too many levels of symbolic links"),
    (lambda: Path("f").mkdir(), "Is a directory"),
    (lambda: Path("f").symlink_to("/dev/zero"), "it is no regular file"),
    (lambda: os.truncate(os.open("f", os.O_CREAT | os.O_WRONLY), 1 << 42), "it holds more than 0 MiB"),
    (lambda: put(gzip.compress(bytes(1 << 20))), "it holds more than 0 MiB"),
    (lambda: None, "No such file or directory"),
]


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "--t-exec", "1", "--lifetimes", "f"),
        ("plan", "--t-exec", "1", "--trace", "f"),
        ("simulate", "--vertices", "9", "--trace", "f"),
        ("run", str(PROGRAM), "--trace", "f"),
    ],
)
@pytest.mark.parametrize(("make", "said"), ODD)
def test_what_is_no_file_that_ends(
    mistake: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    make: Callable[[], object],
    said: str,
) -> None:
    monkeypatch.setattr(traces, "MAX_BYTES", 1 << 16)
    make()
    mistake(command, 2, "f cannot be read", said)
