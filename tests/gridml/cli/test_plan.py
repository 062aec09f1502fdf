"""`gridml plan`: its output, and one message for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Answer = tuple[int, str, str]
COMMAND = "plan"  # that the fixture `gridml` calls
BASE = ("--t-exec", "0.05", "--t-start", "90")
NORMAL = ("--lifetime", "normal(45m,10m)")


def test_help_shows_an_example(gridml: Callable[..., Answer]) -> None:
    status, out, _ = gridml("--help")
    assert status == 0 and 'Example: gridml plan --lifetime "normal(45m,10m)" --t-exec' in " ".join(out.split())
    assert "Default: 0.1" in " ".join(out.replace("│", " ").split())  # default cost of a push


def test_the_answer_for_a_person(gridml: Callable[..., Answer]) -> None:
    status, out, err = gridml(*BASE, *NORMAL, "--no-push")
    assert status == 0 and err == ""
    assert out.startswith("chunk") and "goodput" in out and "the paper's" in out and "reason" in out


def test_the_answer_for_a_program(gridml: Callable[..., Answer]) -> None:
    status, out, err = gridml(*BASE, *NORMAL, "--push-cost", "2", "--workers", "9", "--vertices", "9000", "--json")
    found = json.loads(out)
    assert status == 0 and err == "" and found["chunk"] <= 1000 and found["push_interval_s"] > 0
    assert {"chunk", "push_interval_s", "goodput", "lifetime", "reason", "curve"} <= found.keys()
    assert found == json.loads(
        gridml(*BASE, *NORMAL, "--push-cost", "2", "--workers", "9", "--vertices", "9000", "--json")[1]
    )


def test_what_a_master_carries_and_a_run_is_long_enough_for(gridml: Callable[..., Answer]) -> None:
    options = (
        *BASE,
        *NORMAL,
        "--workers",
        "9",
        "--vertices",
        "9000",
        "--epochs",
        "20",
        "--batch",
        "10",
        "--replica",
        "1MB",
    )
    status, out, err = gridml(*options)
    text = " ".join(out.split())
    assert status == 0 and err == "Measuring pushes of 1,000,000 bytes ...\n"
    assert "workers at most at this push interval: a push takes" in text and "1 MB up and 1 MB down. 9 may push" in text
    assert "at most 120 are useful: 180,000 vertices are 18,000 batches of 10, and of more than 120 workers" in text
    found = json.loads(gridml(*options, "--compress", "int8", "--json")[1])
    assert found["useful_workers"] == 120
    assert 0.25e6 < found["master"]["bytes_up"] < 0.27e6 and found["master"]["most_workers"] > 9


def test_a_trace_and_a_plot(gridml: Callable[..., Answer], tmp_path: Path) -> None:
    lines = [f"{60_000 * i},add,n{i}" for i in range(20)] + [
        f"{1_200_000 + 300_000 * i},remove,n{i}" for i in range(19)
    ]
    (tmp_path / "trace.csv").write_text("\n".join(lines))
    status, out, err = gridml(*BASE, "--trace", "trace.csv", "--plot", "goodput.svg")
    assert status == 0 and err == "" and "20 lives in trace.csv" in " ".join(out.split())
    assert (tmp_path / "goodput.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (("--t-exec", "-1", *NORMAL), 2, "--t-exec is '-1'; expected a time of at least 0"),
        (("--t-exec", "nan", *NORMAL), 2, "--t-exec is 'nan'"),
        (
            (*BASE, *NORMAL, "--replica", "huge"),
            2,
            "--replica is 'huge'; expected a size of at least 4 bytes in B, kB, MB or GB",
        ),
        ((*BASE, *NORMAL, "--replica", "9000GB"), 2, "--replica is 9,000,000,000,000 bytes; expected at most"),
        ((*BASE, *NORMAL, "--compress", "int8"), 2, "got --compress without --replica"),
        ((*BASE, *NORMAL, "--epochs", "0"), 2, "--epochs is 0; expected at least 1"),
        ((*BASE, *NORMAL, "--epochs", "2"), 2, "got --epochs; expected --epochs, --batch, --vertices together"),
        ((*BASE, *NORMAL, "--batch", "2", "--vertices", "9"), 2, "got --batch and --vertices; expected --epochs, --ba"),
        ((*BASE, "--t-copy", "inf", *NORMAL), 2, "--t-copy is 'inf'"),
        ((*BASE, "--push-cost", "-2", *NORMAL), 2, "--push-cost is '-2'"),
        (("--t-exec", "1e-320", *NORMAL), 2, "--t-exec is '1e-320'"),
        ((*BASE, "--push-cost", "1e308", *NORMAL), 2, "--push-cost is '1e308'"),
        ((*BASE, "--wait", "1e308", *NORMAL), 2, "0 itself, or 1e-09 to 1e+12 s"),
        ((*BASE, "--lifetime", "exponential(1e308)"), 2, 'the duration "1e308" is 1e+308 s'),
        ((*BASE, "--lifetimes", "endless.csv"), 2, "endless.csv, line 2: duration_s"),
        ((*BASE,), 2, "got none of them; expected exactly one source of lifetimes"),
        ((*BASE, *NORMAL, "--trace", "trace.csv"), 2, "got --lifetime and --trace; expected exactly one"),
        ((*NORMAL,), 2, "got no --t-exec"),
        ((*BASE, "--lifetimes", "empty.csv"), 2, "empty.csv"),
        ((*BASE, "--lifetimes", "header.csv"), 2, "header.csv"),
        ((*BASE, "--lifetimes", "columns.csv"), 2, "duration_s,ended"),
        ((*BASE, "--lifetimes", "nowhere.csv"), 2, "nowhere.csv cannot be read"),
        ((*BASE, "--trace", "."), 2, "cannot be read"),
        ((*BASE, "--trace", "columns.csv"), 2, "no known format"),
        ((*BASE, "--lifetime", "soon"), 2, 'cannot read the lifetime "soon"'),
        ((*BASE, "--run", "."), 7, "is not a run"),
        (("--t-exec", "1", "--t-start", "1h", "--lifetime", "normal(60,5)"), 2, "normal(60.0s,5.0s)"),
        ((*BASE, *NORMAL, "--plot", "no-such-folder/a.png"), 2, "no-such-folder/a.png cannot be written"),
        ((*BASE, *NORMAL, "--plot", "goodput.xyz"), 2, "goodput.xyz cannot be written"),
    ],
)
def test_a_mistake_gets_one_message(
    gridml: Callable[..., Answer], tmp_path: Path, options: tuple[str, ...], status: int, says: str
) -> None:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("duration_s,ended\n")
    (tmp_path / "endless.csv").write_text("duration_s,ended\n1e308,1\n60,1\n")
    (tmp_path / "columns.csv").write_text("length,dead\n5,1\n")
    (tmp_path / "trace.csv").write_text("0,add,a\n")
    found, out, err = gridml(*options)
    assert found == status and says in err and out == ""
    assert err.startswith("Error: ") and "Traceback" not in err and len(err.strip().splitlines()) == 1


def test_all_censored_is_answered_with_a_warning(gridml: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "lives.csv").write_text("duration_s,ended\n600,0\n900,0\n")
    status, out, err = gridml(*BASE, "--lifetimes", "lives.csv")
    assert status == 0 and err == "" and "warning:" in out
    assert json.loads(gridml(*BASE, "--lifetimes", "lives.csv", "--json")[1])["warnings"]


@pytest.mark.real
def test_it_answers_without_matplotlib_and_torch() -> None:
    """A chunk is planned with only the base dependencies of gridml installed."""
    script = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('matplotlib', 'torch'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from gridml.cli import main as cli\n"
        "cli.main(['plan', '--t-exec', '1', '--lifetime', 'exponential(1h)', *sys.argv[1:]])\n"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (0, "") and "vertices" in done.stdout
    drawn = subprocess.run([*command, "--plot", "a.png"], capture_output=True, text=True, check=False, timeout=120)
    assert drawn.returncode == 2 and "pip install matplotlib" in drawn.stderr
