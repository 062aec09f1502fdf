"""What a stage may not contain: each message has the user's file and line, and says what to write instead."""

from __future__ import annotations

import re

import pytest

from gridml.codegen.kernel import kernel_of
from gridml.codegen.stage_code import StageError
from gridml.model.loading import load
from tests.support.stage_programs import Write, kernel_in, line_of, stages_in

REFUSED = {
    "user.rank[0] = 1.0": "User has no field 'rank'; it has ['age', 'bias', 'p']",
    "user.bias = rating.stars": "the edge has no field 'stars'; it has ['weight']. An edge's value is declared by",
    "user.p = item.q": "item.q is an array of shape (3,); use its elements, item.q[i]",
    "user.p = 0.0": "user.p is an array of shape (3,); write user.p[i], an element",
    "user.bias[0] = 1.0": "user.bias is one number; write user.bias, an element",
    "user.bias = user.p[0, 1]": "user.p is an array of shape (3,); write user.p[i]",
    "user.age = 3": "user.age was written; declare age = gridml.array('int64', (), mutable=True)",
    "rating.weight = 1.0": "rating.weight was written; of an edge only fields change that are declared",
    "at.rate = 1.0": "at.rate is owned by the master; change it in a gridml.global_sync",
    "item.share[0] = 1.0": "item.share is derived; it is written in @gridml.apply(..., at='mirror')",
    "at.count[0] = 1": "at.count is merged by add; write at.count += x",
    "at.total = 1.0": "at.total is an accumulator, and is written as another; write at.total += x",
    "at.worst += 1.0": "at.worst is an accumulator, and is written as another; write at.worst = max(at.worst, x)",
    "user.bias = at.total": "at.total was read before the pass has ended; a gridml.global_sync reads accumulators",
    "user.bias = len(rating)": "rating stands alone; use one of its fields ['weight']",
    "user = item": "item stands alone; use one of its fields ['q', 'share']",
    "item = 1.0": "item was assigned, which is an argument",
    "user.bias = TABLE[0]": "TABLE has no elements; only fields have",
    "user.bias = TABLE": "TABLE is an array; a stage may use numbers of the module, and its arguments. Declare a field",
    "x = NAME": "NAME is a str; a stage may use numbers",
    "x = missing": "missing is not defined",
    "x = math.missing": "math.missing is no field, and no number of a module",
    "x = 'text'": "'text' is no number; stages have numbers only",
    "x = [1.0]": "'[1.0]' cannot be compiled: declare a field for it",
    "x = [i for i in range(3)]": "'[i for i in range(3)]' cannot be compiled: write a loop",
    "x = f'{user.bias}'": "cannot be compiled: stages have numbers only, and no text",
    "try:\n    x = 1\nexcept ValueError:\n    pass": "'try:' cannot be compiled: errors cannot be caught in a stage",
    "with x:\n    pass": "'with x:' cannot be compiled: with has no use in a stage",
    "assert user.bias": "cannot be compiled: a stage raises no errors; write if",
    "raise ValueError": "cannot be compiled: a stage raises no errors; leave the vertex out with return",
    "x = lambda y: y": "cannot be compiled: write a function with def at the top level",
    "import os": "cannot be compiled: import it at the top of the file",
    "global HALF": "cannot be compiled: put the number into a field of a context",
    "x = user.p[0:2]": "'0:2' cannot be compiled: write a loop over the elements",
    "return user.bias": "stage returns a value; a stage returns nothing, it changes fields",
    "for f in range(3):\n    return": "return inside a loop is not compiled; leave the loop with break",
    "for f in user.p:\n    pass": "for f in user.p is not compiled; write a loop over range(n)",
    "for f in rating:\n    pass": "a loop over rating is not compiled; write range(n)",
    "print(user.bias)": "print is not compiled; a stage may call functions of math, abs, bool",
    "x = np.dot(user.p, item.q)": "np.dot is not compiled; a stage may call functions of math",
    "x = math.pow(user.bias, y=2)": "math.pow is called with named arguments; give them by position",
    "x = stage(user, item, rating, at)": "stage is a stage, and stages call no stages",
    "_x = 1": "the name _x begins with an underscore, or has two",
    "my__x = 1": "the name my__x begins with an underscore, or has two",
    "x: float": "a variable is declared without a value; give it one",
    "x = user.p[0][1]": "is no element of a field",
    "x = 1 if user.age in (1, 2) else 0": "In cannot be compiled: compare the elements in a loop",
}


@pytest.mark.parametrize("body", REFUSED, ids=[body.partition("\n")[0] for body in REFUSED])
def test_what_is_refused_and_what_to_write_instead(write: Write, body: str) -> None:
    path = write(f"user.bias += 1.0\n{body}")
    with pytest.raises(StageError) as refused:
        kernel_in(path)
    found = re.fullmatch(r"program\.py:(\d+): (.*)", str(refused.value), re.S)
    assert found is not None
    assert REFUSED[body] in found[2]
    lines = body.splitlines()
    first = line_of(path, f"    {lines[0]}")
    if "underscore" not in found[2]:
        assert first <= int(found[1]) < first + len(lines)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("at.total += 1.0", "at.total is an accumulator, and mirrors of several workers would count twice"),
        ("item.q[0] = 1.0", "item.q was written by an apply at mirrors, which every worker repeats"),
    ],
)
def test_what_an_apply_must_not_write(write: Write, body: str, said: str) -> None:
    path = write(body, "item: Item, at: At", 'apply(Item, at="mirror")', "", stages="other, stage")
    text = path.read_text().replace("\n\nprogram =", OTHER + "\n\nprogram =")
    path.write_text(text)
    with pytest.raises(StageError, match=re.escape(f"program.py:{line_of(path, body)}: {said}")):
        kernel_of(stages_in(load(path))[1])


OTHER = """

@gridml.exchange(over=User)
def other(user: User, item: Item) -> None:
    user.bias += item.q[0]
"""


def test_the_text_of_a_kernel_depends_on_no_number_of_the_module(write: Write) -> None:
    path = write("for f in range(SIZE):\n    user.p[f] *= HALF")
    before = kernel_in(path)
    path.write_text(path.read_text().replace("HALF, TABLE, NAME = 3, 0.5,", "HALF, TABLE, NAME = 3, 0.25,"))
    after = kernel_in(path)
    assert before.text == after.text
    assert [dict(k.numbers)["HALF"].item() for k in (before, after)] == [0.5, 0.25]


def test_every_line_of_a_kernel_knows_the_users_line(write: Write) -> None:
    body = "x = 1.0\nif user.bias > x:\n    for f in range(SIZE):\n        user.p[f] += x\nelse:\n    at.count[1] += 2"
    path = write(body)
    kernel, text = kernel_in(path), path.read_text().splitlines()
    made = kernel.text.splitlines()
    for mine, theirs in (("x = np.float32(1.0)", "x = 1.0"), ("_user__p[_x, f] += x", "user.p[f] += x"),
                         ("_at__count__total[0 * 3 + _at(1, 3)] += np.int32(2)", "at.count[1] += 2")):  # fmt: skip
        at = next(n for n, line in enumerate(made, 1) if line.strip() == mine)
        file, line = kernel.lines[at]
        assert file == str(path)
        assert text[line - 1].strip() == theirs
