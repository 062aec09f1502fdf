"""Mistakes on the command line: each has one message with the given and the expected value."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "programs" / "counts.py"
LONG = "n" * 300
HUGE = "9" * 30
LONE = "\udcff"  # a byte of a file name that is not valid text
COLOUR = "\x1b[31m"
NORMAL = ("--lifetime", "normal(45m,10m)")

RUN = [
    ("--workers", "x", "Invalid value for '--workers'"),
    ("--workers", "", "Invalid value for '--workers'"),
    ("--workers", "1.5", "Invalid value for '--workers'"),
    ("--workers", "nan", "Invalid value for '--workers'"),
    ("--workers", COLOUR, "Invalid value for '--workers'"),
    ("--workers", LONE, "Invalid value for '--workers'"),
    ("--workers", "0", "--workers is 0; expected at least 1"),
    ("--workers", "-1", "--workers is -1; expected at least 1"),
    ("--epochs", "[bold]", "Invalid value for '--epochs'"),
    ("--epochs", "0", "--epochs is 0; expected at least 1"),
    ("--epochs", HUGE, "expected at most 1,000,000,000"),
    ("--seed", "x", "Invalid value for '--seed'"),
    ("--seed", "-1", "--seed is -1; expected a whole number from 0 to 4294967295"),
    ("--seed", HUGE, "expected a whole number from 0 to 4294967295"),
    ("--chunk", "0", "--chunk is 0; expected at least 1"),
    ("--chunk", HUGE, "expected at most 1,000,000,000"),
    ("--push-every", "-1", "--push-every is -1; expected at least 1"),
    ("--push-every", HUGE, "expected at most 1,099,511,627,776"),
    ("--compress", "int3", "--compress is 'int3'; expected none, int8 or int4: pushes carry"),
    ("--compress", "8", "--compress is '8'; expected none, int8 or int4"),
    ("--compress", "", "--compress is ''; expected none, int8 or int4"),
    ("--compress", COLOUR, r"--compress is '\x1b[31m'; expected"),
    ("--compress-down", "int8", "--compress-down is 'int8'; expected none or bf16"),
    ("--compress-down", "bf16", "got --compress-down bf16 without --compress; expected --compress int8 or int4"),
    ("--device", "gpu", "--device is 'gpu'; expected auto, cpu, cuda, or cuda:N"),
    ("--device", "cuda:-1", "--device is 'cuda:-1'; expected auto, cpu, cuda, or cuda:N"),
    ("--device", "cuda:1023", "--device is cuda:1023; this machine has"),
    ("--device", COLOUR, r"--device is '\x1b[31m'; expected auto"),
    ("--speedup", "x", "Invalid value for '--speedup'"),
    ("--speedup", "0", "--speedup is 0.0; expected"),
    ("--speedup", "nan", "--speedup is nan; expected"),
    ("--lifetime", "", 'cannot read the lifetime ""'),
    ("--lifetime", "[/]", 'cannot read the lifetime "[/]"'),
    ("--lifetime", COLOUR, r'cannot read the lifetime "\x1b[31m"'),
    ("--lifetime", LONE, r'cannot read the lifetime "\udcff"'),
    ("--lifetime", "normal()", "normal has 0 parameters, expected 2"),
    ("--lifetime", "normal(nan,1)", 'cannot read the duration "nan"'),
    ("--lifetime", "normal(1e999,1)", "is inf s: give 0, or from 1e-09"),
    ("--lifetime", "exponential(0)", "must be finite and above 0, got 0.0"),
    ("--lifetime", "exponential(1m)\nqueue", "cannot read the lifetime"),
    ("--lifetime", "mixture(1*" * 5000 + "exponential(1h)" + ")" * 5000, "has 55,015 characters; expected at most"),
    ("--lifetime", "exponential(" + "9" * 5000 + ")", "has 5,013 characters; expected at most"),
    ("--trace", "", "cannot be read: Is a directory"),
    ("--trace", "nothing.csv", "cannot be read: No such file or directory"),
    ("--trace", LONG, "cannot be read: File name too long"),
    ("--trace", "/dev/zero", "cannot be read: it is no regular file"),
    ("--run-dir", "/dev/null/x", "cannot be made"),
    ("--run-dir", LONG, "cannot be made: [Errno 36] File name too long"),
    ("--run-dir", "a/" * 3000, "cannot be made: [Errno 36] File name too long"),
    ("--run-dir", "a\0b", "Invalid value for '--run-dir'"),
    ("--run-dir", "", "holds other files, such as mine.txt"),
    ("--run-dir", ".", "holds other files, such as mine.txt"),
    ("--bogus", "", "No such option: --bogus"),
    ("--[bold]", "", "No such option: --[bold]"),
]


@pytest.mark.parametrize(("option", "value", "said"), RUN)
def test_an_option_of_run(mistake: Callable[..., str], tmp_path: Path, option: str, value: str, said: str) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    mistake(["run", PROGRAM, option, value], 2, said)
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.txt"}


PROGRAMS = [
    ("", "is a folder. Expected the Python file of a program"),
    (".", "is a folder"),
    ("/dev/null", "is no regular file"),
    ("fifo", "fifo is no regular file"),
    ("loop", "loop cannot be read: Too many levels of symbolic links"),
    ("nothing.py", "no such file"),
    (f"{LONE}.py", r"no such file: "),
    (f"{COLOUR}.py", r"\x1b[31m.py"),
    ("[bold]", "[bold]. Expected"),
    (LONG, "cannot be read: File name too long"),
    ("a\0b.py", "Invalid value for"),
    ("p" * 240 + ".py", "has 243 bytes, which is more than 200"),
    ("text.txt", "is not a Python file. Its name must end in .py"),
]


@pytest.mark.parametrize(("program", "said"), PROGRAMS)
@pytest.mark.parametrize("command", [("run",), ("simulate",), ("submit", "--dry-run")])
def test_a_program(
    mistake: Callable[..., str], tmp_path: Path, command: tuple[str, ...], program: str, said: str
) -> None:
    os.mkfifo("fifo")
    Path("loop").symlink_to("loop")
    Path("text.txt").write_text("hello")
    Path("p" * 240 + ".py").write_text(PROGRAM.read_text())
    mistake([*command, program, "--run-dir", "r"], 2, said)


PLAN = [
    ((), "got no --t-exec; expected the time to train a vertex"),
    (("--t-exec", "1"), "got none of them; expected exactly one source of lifetimes"),
    (("--t-exec", "1", *NORMAL, "--run", "r"), "got --lifetime and --run"),
    (("--t-exec", "1", *NORMAL, "--boot", "5"), "got --boot without --many-chunks"),
    (("--t-exec", "1", *NORMAL, "--no-push", "--push-cost", "1"), "got --push-cost and --no-push"),
    (("--t-exec", "0", *NORMAL), "--t-exec is 0; expected the time to train a vertex"),
    (("--t-exec", "1e12", *NORMAL), "no chunk would ever finish"),
    *(
        (("--t-exec", "1", *NORMAL, option, value), f"{option} is {value!r}; expected a time of at least 0")
        for option in ("--t-exec", "--t-copy", "--t-start", "--t-end", "--push-cost", "--wait")
        for value in ("", "x", "-1", "nan", "inf", "1e400", "1e-320", "1m30s")
    ),
    (("--t-exec", COLOUR, *NORMAL), r"--t-exec is '\x1b[31m'; expected a time"),
    (("--t-exec", "1", *NORMAL, "--workers", "0"), "--workers is 0; expected at least 1"),
    (("--t-exec", "1", *NORMAL, "--vertices", "-1"), "--vertices is -1; expected at least 1"),
    (("--t-exec", "1", *NORMAL, "--largest", "x"), "Invalid value for '--largest'"),
    (("--t-exec", "1", *NORMAL, "--plot", ""), "its name says no format"),
    (("--t-exec", "1", *NORMAL, "--plot", "x"), "x cannot be written: its name says no format"),
    (("--t-exec", "1", *NORMAL, "--plot", "x.[bold]"), "x.[bold] cannot be written"),
    (("--t-exec", "1", *NORMAL, "--plot", "nowhere/x.png"), "nowhere/x.png cannot be written"),
    (("--t-exec", "1", *NORMAL, "--plot", LONG + ".png"), "File name too long"),
]


@pytest.mark.parametrize(("arguments", "said"), PLAN)
def test_an_option_of_plan(mistake: Callable[..., str], arguments: tuple[str, ...], said: str) -> None:
    mistake(["plan", *arguments], 2, said)


SIMULATE = [
    ("--cost", "", "expected NAME=NUMBER"),
    ("--cost", "t_x", "expected NAME=NUMBER"),
    ("--cost", "t_x=0", "must be above 0"),
    ("--cost", "t_x=nan", "expected a time of at least 0"),
    ("--cost", "t_x=1,t_x=2", "expected each name once"),
    ("--cost", "[/]=1", "--cost has '[/]=1'; expected NAME=NUMBER"),
    ("--cost", "t_s=1", "expected at least t_x"),
    ("--epochs", HUGE, "expected at most 1,000,000,000"),
    ("--chunk", "0", "--chunk is 0; expected at least 1"),
    ("--workers", "1000001", "expected at most 1,000,000"),
    ("--fast", "nan", "expected"),
    ("--fast-factor", "inf", "expected"),
    ("--spread", "-1", "expected"),
    ("--late", "101", "expected both"),
    ("--grace-share", "nan", "--grace-share is nan; expected a share from 0 to 1"),
    ("--grace-share", "2", "--grace-share is 2.0; expected a share from 0 to 1"),
    ("--storm-share", "-1", "--storm-share is -1.0; expected a share from 0 to 1"),
    ("--storm-every", "x", "--storm-every is 'x'; expected a time"),
    ("--faults", "lose=nan", "expected"),
    ("--faults", "bogus=1", "expected NAME=NUMBER with a name of"),
    ("--faults", "delay=1e12", "expected at most 86400 s"),
    ("--travel", "2d", "expected at most 86400 s"),
    ("--crash-every", "-1", "expected a time"),
    ("--silence", "0", "expected a number above 0"),
    ("--silence", "inf", "expected at most 1e+09 seconds"),
    ("--turn", "", "expected a time"),
    ("--campaign", "0", "expected 1 or more"),
    ("--seed", "-1", "--seed is -1; expected a whole number"),
    ("--run-dir", LONG, "File name too long"),
    ("--run-dir", "a\0b", "embedded null byte"),
]


@pytest.mark.parametrize(("option", "value", "said"), SIMULATE)
def test_an_option_of_simulate(mistake: Callable[..., str], option: str, value: str, said: str) -> None:
    mistake(["simulate", "--vertices", "100", option, value], 2, said)


SUBMIT = [
    *(
        (option, value, shown)
        for option in ("--batch-name", "--requirements", "--rank", "--request-memory", "--python", "--project")
        for value, shown in (
            ("a\nqueue 100", rf"{option} is 'a\nqueue 100'; expected one line"),
            (COLOUR, rf"{option} is '\x1b[31m'; expected one line"),
        )
    ),
    ("--batch-name", "a\rqueue", r"--batch-name is 'a\rqueue'; expected one line"),
    ("--batch-name", LONE, r"--batch-name is '\udcff'; expected one line"),
    ("--batch-name", "x" * 9000, "expected one line of at most 8,000 printable"),
    ("--request-disk", "a\0b", "expected one line"),
    ("--container-image", "a\nqueue", r"--container-image is 'a\nqueue'; expected one line"),
    ("--send", "a\nb", "--send is"),
    ("--packed", "nothing.tgz", "it is not there. Name a file that is"),
    ("--attribute", "A=1\nqueue 5", r"--attribute is 'A=1\nqueue 5'; expected one line"),
    ("--attribute", "A", "expected NAME=EXPRESSION"),
    ("--attribute", "=1", "expected NAME=EXPRESSION"),
    ("--request-cpus", "0", "--request-cpus is 0; expected at least 1"),
    ("--max-idle", HUGE, "expected at most 1,000,000"),
    ("--grace", "-1", "--grace is -1; expected at least 1"),
    ("--silence", "nan", "--silence is nan; expected"),
    ("--carrier", "bogus", "--carrier is 'bogus'; expected"),
]


@pytest.mark.parametrize(("option", "value", "said"), SUBMIT)
def test_an_option_of_submit(mistake: Callable[..., str], option: str, value: str, said: str) -> None:
    mistake(["submit", PROGRAM, "--dry-run", "--run-dir", "r", option, value], 2, said)


def test_a_run_directory_that_no_submit_description_can_name(mistake: Callable[..., str]) -> None:
    mistake(["submit", PROGRAM, "--dry-run", "--run-dir", "a\nqueue 9"], 2, "expected one line")


JSON = [
    ("run", str(PROGRAM), "--json", "--workers", "0"),
    ("run", str(PROGRAM), "--json", "--workers", "x"),
    ("run", "--json"),
    ("run", "nothing.py", "--json"),
    ("resume", "nothing", "--json"),
    ("status", "nothing", "--json"),
    ("watch", "nothing", "--json"),
    ("report", LONE, "--json"),
    ("report", "nothing", "--json", "--plot", "x.png"),
    ("plan", "--json"),
    ("simulate", "--json", "--vertices", "0"),
    ("simulate", "--json", "--campaign", "1", "--seed", "-1"),
    ("submit", str(PROGRAM), "--json", "--batch-name", "a\nb"),
]


@pytest.mark.parametrize("arguments", JSON)
def test_what_programs_read_is_json_on_error_too(
    answer: Callable[..., dict[str, Any]], arguments: tuple[str, ...]
) -> None:
    found = answer(arguments)
    assert found["error"] and found["exit_status"] in (2, 7)


def test_a_trace_whose_machines_are_all_gone_ends_the_run(mistake: Callable[..., str]) -> None:
    Path("t").write_text("0,add,a\n50,remove,a\n")
    said = ("all 1 machines of the script are gone", "1 workers wait for one", "longer trace", "gridml resume r")
    mistake(["run", PROGRAM, "--trace", "t", "--run-dir", "r"], 8, *said)
