"""`gridml check` of stages: they run as plain Python first, and a mistake gives one message at the user's line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]
FACTORS = (Path(__file__).parents[2] / "programs" / "factors.py").read_text()
LINE = "    user.visits += 1\n"
MISTAKES = [  # (text in the program, its replacement, the message)
    ("for f in range(RANK):\n        error", "for f in range(RANK + 1):\n        error", "index 8 is out of bounds"),
    (LINE, "    user.visits += 1 + 'one'\n", "'one' is no number; stages have numbers only"),
    (LINE, "    item.q = user.p\n", "user.p is an array of shape (8,); use its elements, user.p[i]"),
    (LINE, "    at.rate = 0.0\n", "at.rate is owned by the master; change it in a gridml.global_sync"),
    (LINE, "    user.visits = math.exp(1.0, 2.0)\n", "math.exp() takes exactly one argument"),
    ("    shared.passes += 1\n", "    shared.passes += shared.missing\n", "cool failed after a pass: AttributeError"),
    ("    shared.passes += 1\n", "    shared.rate = float('nan')\n", "Shared.rate is not finite after a pass"),
    (
        "    shared.passes += 1\n",
        "    return shared.passes\n",
        "a global_sync changes the context, and returns nothing, or True",
    ),
    ("size=16", "size=16, slack=-1", "MiniBatch got slack=-1; expected a whole number of mini-batches from 0 on"),
    ("    g.add(Shared, ", "    g.add(Item, ", "graph.add(Item, ...) got unknown fields"),
    ("    g.add(Shared, mean", "    dict(mean", "the graph has 0 Shared vertices, and a stage takes Shared"),
    ("over=User", "over=Shared", "argument user of learn is User, a local type that no edge of Shared leads to"),
    ("q=start.normal(0, 0.3, (ITEMS", "q=start.normal(0, 0.3, (0", "there are 0 Item vertices"),
]


def check(command: Command, tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "factors.py").write_text(text)
    return command("check", tmp_path / "factors.py")


def test_a_correct_program(command: Command, tmp_path: Path) -> None:
    done = check(command, tmp_path, FACTORS)
    assert done.returncode == 0
    assert "moved Item.q, Shared.loss, Shared.seen, Shared.worst" in done.stdout
    assert "warning" not in done.stderr


@pytest.mark.parametrize(("text", "instead", "said"), MISTAKES, ids=[each[2][:40] for each in MISTAKES])
def test_a_mistake_gives_one_message(command: Command, tmp_path: Path, text: str, instead: str, said: str) -> None:
    assert text in FACTORS
    done = check(command, tmp_path, FACTORS.replace(text, instead, 1))
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())
    assert "gridml/codegen" not in done.stderr


def test_the_users_line_is_shown_and_not_gridmls(command: Command, tmp_path: Path) -> None:
    mistaken = FACTORS.replace("for f in range(RANK):\n        error", "for f in range(RANK + 1):\n        error", 1)
    done = check(command, tmp_path, mistaken)
    assert "error -= user.p[f] * item.q[f]" in done.stderr
    assert done.stderr.count("File ") == 1


def test_ratings_that_are_no_numbers(command: Command, tmp_path: Path) -> None:
    text = FACTORS.replace("    start, g =", "    rating[3, 4] = np.nan\n    start, g =", 1)
    text = text.replace("mean=rating.mean()", "mean=3.0")
    done = check(command, tmp_path, text)
    assert "User.rated has NaN or infinity as the weight of 1 of 4,800 edges, first of edge 64" in done.stderr
