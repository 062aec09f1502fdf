"""A stage computes the same compiled and as plain Python, bit for bit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from gridml.codegen import cache
from gridml.codegen.cache import module_of
from gridml.codegen.stage_code import StageError
from gridml.engine import stage_runner
from gridml.engine.update_runner import BatchFailed
from gridml.model.loading import load
from tests.support.stage_programs import EDGE, Found, Write, line_of, trained


def check_alike(path: Path, *moved: str, holds: bool = False) -> Found:
    compiled, plain = (trained(path, plain=plain, holds=holds) for plain in (False, True))
    untouched = trained_by_nothing(path)
    for name in compiled:
        assert compiled[name].tobytes() == plain[name].tobytes(), name
        assert (compiled[name].tobytes() != untouched[name].tobytes()) == (name in moved), name
    return compiled


def trained_by_nothing(path: Path) -> Found:
    program = load(path)
    graph = program.build(path)
    return {f"{n}.{f}": column for n, table in graph.tables.items() for f, column in table.columns.items()}


ALIKE = {
    "sums of products": ("error = rating.weight - at.rate\nfor f in range(SIZE):\n    error -= user.p[f] * item.q[f]\n"
                         "at.total += error * error\nuser.bias += 0.1 * error",
                         ("At.total", "User.bias")),
    "both ends": ("for f in range(SIZE):\n    p, q = user.p[f], item.q[f]\n    user.p[f] = p + at.rate * q * HALF\n"
                  "    item.q[f] = q - at.steps[f] * p / 3.0", ("User.p", "Item.q")),
    "conditions": ("if user.age == 1 and rating.weight > 0:\n    return\nelif not user.age:\n"
                   "    user.bias = 2 * user.bias + abs(rating.weight)\nelse:\n"
                   "    user.bias -= min(rating.weight, at.rate) if item.q[0] > 0 else 0.3",
                   ("User.bias",)),
    "counts": ("at.count[user.age] += 2\nat.count[1] -= 1.6\nat.count[-1] -= 1\n"
               "at.by_size[(user.age + 1) % SIZE] += 1\nat.worst = max(at.worst, rating.weight)\n"
               "user.bias += at.count[0]",
               ("At.count", "At.by_size", "At.worst", "User.bias")),
    "while": ("n = 0\nwhile n < 4:\n    n += 1\n    if n == 3:\n        continue\n    user.bias += n / 7",
              ("User.bias",)),
    "functions": ("user.bias += square(rating.weight) + math.sqrt(float(user.age)) + np.float32(0.3)", ("User.bias",)),
    "scratch": ("at.hold[1] = rating.weight\nuser.bias += at.hold[1] * math.pi", ("User.bias",)),
    "whole numbers": ("n = user.age * 7 // 2 % 5 - 2\nuser.bias += n ** 2 + -n", ("User.bias",)),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_edge_by_edge(write: Write, name: str) -> None:
    body, moved = ALIKE[name]
    check_alike(write(body), *moved)


def test_vertex_by_vertex(write: Write) -> None:
    body = (
        "total = 0.0\nfor link in ratings:\n    total += link.weight * link.end.q[0]\n    link.end.q[1] += 0.5\n"
        "if len(ratings) > 0:\n    user.bias = total / len(ratings)"
    )
    check_alike(write(body, "user: User, ratings: gridml.Links[Item], at: At"), "User.bias", "Item.q")


def test_changes_of_counts_are_in_force_when_the_mini_batch_ends(write: Write) -> None:
    body = "user.bias += word.count[1, user.age]\nword.count[1, user.age] += 3\nword.count[0, -3] -= 1"
    found = check_alike(write(body, "user: User, word: Word, at: At"), "User.bias", "Word.count")
    program = load(write(body, "user: User, word: Word, at: At"))
    graph = program.build(Path())
    before = graph.tables["Word"].columns["count"]
    edges, age = graph.tables["User"].edges["said"].targets.reshape(20, 2), graph.tables["User"].columns["age"]
    count, bias = before.copy(), np.zeros(20, np.float32)
    for start in range(0, 20, 5):
        now = count.copy()
        for user in range(start, start + 5):
            for word in edges[user]:
                bias[user] += now[word, 1, age[user]]
                count[word, 1, age[user]] += 3
                count[word, 0, 0] -= 1
    np.testing.assert_array_equal(found["Word.count"], count)
    np.testing.assert_array_equal(found["User.bias"], bias)


SAID = "user: User, word: Word, at: At"
LOGGED = {
    "total": ("for n in range(700):\n    at.count[n % SIZE] += 1", EDGE, "At.count", 700),
    "loop": ("for n in range(90):\n    word.count[n % 2, 0] += 1", SAID, "Word.count", 90),
    "edge": ("word.count[1, user.age] += 3\nword.count[0, -3] -= 1", SAID, "Word.count", 2),
    "both": ("word.count[0, 0] += 1\nn = 0\nwhile n < 4:\n    n += 1\n    word.count[1, 2] += 2",
             SAID, "Word.count", 9),
    "links": ("for link in said:\n    link.end.count[0, 1] -= 1\n    if user.age:\n        continue\n"
              "    link.end.count[0, 1] += 1\n    link.end.count[1, 1] += 1 + user.age",
              "user: User, said: gridml.Links[Word]", "Word.count", None),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGGED)
def test_more_changes_than_a_log_holds_at_first(write: Write, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(stage_runner, "LOG_ENTRIES", 1)
    body, signature, field, by_each = LOGGED[name]
    path = write(body, signature)
    found = check_alike(path, field)
    graph = load(path).build(path)
    edges = len(graph.tables["User"].edges["rated" if signature == EDGE else "said"].targets)
    if by_each is not None:
        assert found[field].sum() == by_each * edges + graph.tables[field[: field.index(".")]].columns["count"].sum()


HELD = """unused0, item.q[0] = item.q[0], rating.weight
if rating.weight > 0:
    item.q[1] += gridml.uniform()
at.count[0] += 1
at.total += rating.weight
at.worst = max(at.worst, rating.weight)
at.hold[0] = unused0
user.bias += item.q[0] + item.q[1] + at.hold[0] + gridml.uniform()"""


def test_with_the_replica_held_only_local_fields_change(write: Write) -> None:
    path = write(HELD)
    held = check_alike(path, "User.bias", holds=True)
    assert held["User.bias"].tobytes() != trained(path, plain=False)["User.bias"].tobytes()
    path = write(HELD.replace("item.q[0], rating.weight", "item.q[0], 1").replace("item.q[1] +=", "at.hold[1] +="))
    assert held["User.bias"].tobytes() == check_alike(path, "User.bias", holds=True)["User.bias"].tobytes()


WEIGHED = """counters.empty(at.mine)
for link in ratings:
    counters.put(at.mine, (user.age + int(link.weight > 0)) % 3)
for link in ratings:
    held = (user.age + int(link.weight > 0)) % 3
    counters.take(at.mine, held)
    near = counters.weigh(at.mine, at.steps, at.hold, held, (user.age + 0.25) / 7)
    user.bias += near + counters.draw(at.mine, at.hold, gridml.uniform() * near)
    counters.put(at.mine, held)"""


def test_counters_weigh_and_draw_alike(write: Write) -> None:
    check_alike(write(WEIGHED, "user: User, ratings: gridml.Links[Item], at: At"), "User.bias")


def test_vertices_without_the_field_of_when_are_left_out(write: Write) -> None:
    found = check_alike(write("user.bias += 1.0", EDGE, 'exchange(over=User, when="age")'), "User.bias")
    assert not found["User.bias"][::3].any()
    assert found["User.bias"].any()


def test_mirrors_compute_derived_fields_before_an_exchange_reads_them(write: Write) -> None:
    before = (
        '@gridml.apply(Item, at="mirror")\ndef shares(item: Item, at: At) -> None:\n    total = 0.0\n'
        "    for f in range(SIZE):\n        total += abs(item.q[f])\n    for f in range(SIZE):\n"
        "        item.share[f] = item.q[f] / total\n\n\n"
    )
    path = write("user.bias += item.share[2]\nitem.q[0] += 0.1", before=before, stages="shares, stage")
    check_alike(path, "User.bias", "Item.q")


def test_an_index_out_of_range_is_found_at_the_users_line(write: Write) -> None:
    path = write("for f in range(SIZE + 1):\n    user.bias += user.p[f]")
    with pytest.raises(BatchFailed) as failed:
        trained(path, plain=True)
    cause = failed.value.__cause__
    assert isinstance(cause, IndexError)
    frames, trace = [], cause.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    assert (str(path), line_of(path, "user.bias += user.p[f]")) in frames


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("user.bias = 1.0\nuser.bias += user.p", "user.p is an array of shape (3,); use its elements"),
        ("if user.bias > 0:\n    x = 1.0\nuser.bias += y", "y is not defined"),
        ("x = 1.0\nuser.bias = math.exp(x, 2.0)", "exp is not defined for these values"),
        ("user.bias = square(user.p)", "an array was assigned to one number; write a loop over its elements"),
    ],
)
def test_what_the_compiler_refuses_is_told_by_the_users_line(write: Write, body: str, said: str) -> None:
    path = write(body)
    with pytest.raises((BatchFailed, StageError)) as failed:
        trained(path, plain=False)
    cause = failed.value if isinstance(failed.value, StageError) else failed.value.__cause__
    assert str(cause).startswith(f"program.py:{line_of(path, body.splitlines()[-1])}: {said}")


def test_the_folder_of_generated_modules_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDML_CACHE", str(tmp_path))
    made = cache.folder.__wrapped__()
    assert made == tmp_path / "stages"
    assert made.stat().st_mode & 0o777 == 0o700
    os.chmod(made, 0o770)
    other = cache.folder.__wrapped__()
    assert other != made
    assert cache.is_private(other)


def test_a_module_is_written_once_and_again_if_it_was_damaged(tmp_path: Path) -> None:
    first = module_of("x = 1\n", "numbers", tmp_path)
    assert module_of("x = 1\n", "numbers", tmp_path) is first
    other = module_of("x = 2\n", "numbers", tmp_path)
    assert (first.x, other.x, len(list(tmp_path.glob("*.py")))) == (1, 2, 2)
    assert first.__file__ is not None
    Path(first.__file__).write_text("x = 3\n")
    del sys.modules[first.__name__]
    assert module_of("x = 1\n", "numbers", tmp_path).x == 1


def test_a_topic_model_draws_the_same_compiled_and_as_plain_python(programs: Path) -> None:
    """With random numbers, counters, fields of edges, derived fields and logs."""
    path = programs / "topics.py"
    compiled, plainly = (trained(path, plain=plain, count=24, size=8) for plain in (False, True))
    assert set(compiled) == {"Corpus.count", "Corpus.drawn", "Word.count", "Text:words.topic", "Text:words.visits"}
    for name, values in compiled.items():
        assert values.tobytes() == plainly[name].tobytes(), name
    assert (compiled["Text:words.visits"] == 1).all()
