"""`gridml check` reports exactly the reads of sums of earlier epochs, which are incomplete while epochs overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from master.planning.read_sums import MAX_LOADS
from master.planning.trial import try_out

PROGRAM = """
import numpy as np
import gridml

COUNT, PARTS, EPOCHS = 400, 3, {epochs}
rng = np.random.default_rng(3)
cache = {{}}


class Sums(gridml.Vertex):
    n = gridml.array("{dtype}", (EPOCHS + 1, PARTS))
    s = gridml.array("float64", (EPOCHS + 1, PARTS))
    aggregate = {rule}


class Weights(gridml.Vertex):
    w = gridml.array("float32", (PARTS,))


class Point(gridml.Vertex):
    x = gridml.array("float64"{mutable})
    sums = gridml.edge(Sums)
    weights = gridml.edge(Weights)


def add(sums, row, x, centres):
    nearest = np.abs(x[:, None] - centres).argmin(1)
    sums.n[row] += np.bincount(nearest, minlength=PARTS).astype("{dtype}")
    sums.s[row] += np.bincount(nearest, x, PARTS)


@gridml.update(batch=20)
def f(points: gridml.Batch[Point], sums: Sums, weights: Weights, at: gridml.Progress) -> None:
    e, x = at.epoch, points.x
{body}

def graph():
    g = gridml.Graph()
    made = np.random.default_rng(0)
    n, s = np.zeros((1, EPOCHS + 1, PARTS), "{dtype}"), np.zeros((1, EPOCHS + 1, PARTS))
    n[0, 0], s[0, 0] = 1, [-2, 0, 2]
    sums, weights = g.add(Sums, n=n, s=s), g.add(Weights, w=np.ones((1, PARTS), "float32"))
    g.add(Point, x=made.normal(0, 2, COUNT), sums=sums, weights=weights)
    return g


program = gridml.Program(graph, f, epochs=EPOCHS{more})
"""
K_MEANS = "    add(sums, e + 1, x, sums.s[e] / np.maximum(sums.n[e], 1))\n"
SAID = "f reads what an earlier epoch has added to"

READ = {
    "k-means": K_MEANS,
    "its centres are kept by the worker": (
        "    if e not in cache:\n        cache[e] = sums.s[e] / np.maximum(sums.n[e], 1)\n"
        "    add(sums, e + 1, x, cache[e])\n"
    ),
    "it has its first centres from elsewhere": (
        "    add(sums, e + 1, x, sums.s[e] / sums.n[e] if e else np.array([-2.0, 0.0, 2.0]))\n"
    ),
    "a mean that is taken off in the epochs after it": (
        "    if e == 0:\n        sums.n[0, 0] += len(x)\n        sums.s[0, 0] += x.sum()\n"
        "    else:\n        weights.w += (x.mean() - sums.s[0, 0] / sums.n[0, 0]).astype('float32')\n"
    ),
    "the last epoch alone reads": (
        "    if e < EPOCHS - 1:\n        sums.s[e + 1] += x.sum()\n"
        "    else:\n        weights.w += sums.s[1].astype('float32') / COUNT\n"
    ),
    "f fails on other sums": (
        "    sums.n[e + 1] += len(x)\n    assert e == 0 or sums.n[e][0] == 20\n    sums.s[e + 1] += x.sum()\n"
    ),
    "batches are drawn": K_MEANS.replace(", x,", ", rng.choice(x, 10),"),
}
NOT_READ = {
    "counted": "    sums.n[e + 1] += 1\n    sums.s[e + 1] += x.sum()\n",
    "a running sum is read and added to": (
        "    sums.s[0] += (x**2).mean()\n    weights.w -= (x.mean() / np.sqrt(0.1 + sums.s[0])).astype('float32')\n"
    ),
    "drawn": (
        "    sums.n[e + 1] += 1\n    weights.w += np.random.normal() + rng.normal()\n    sums.s[e] += rng.normal()\n"
    ),
    "another in each call": (
        "    cache[0] = cache.get(0, 0) + 1\n    sums.s[e + 1] += cache[0]\n    weights.w += cache[0]\n"
    ),
    "weights are read": "    sums.s[e + 1] += weights.w * x.sum()\n    weights.w += x.mean().astype('float32')\n",
}


def said(
    folder: Path,
    body: str,
    *,
    epochs: int = 3,
    dtype: str = "float64",
    rule: str = "gridml.add()",
    more: str = "",
    first: str = "",
    about: str = SAID,
) -> list[str]:
    path, mutable = folder / "sums.py", ", mutable=True" if "x[:]" in body else ""
    text = PROGRAM.format(body=body, epochs=epochs, dtype=dtype, rule=rule, more=more, mutable=mutable)
    path.write_text(
        first + text.replace("(PARTS,))\n\n\nclass Point", "(PARTS,))\n    aggregate = gridml.mean()\n\n\nclass Point")
    )
    return [odd for odd in try_out(path).odd if about in odd]


@pytest.mark.parametrize("body", READ.values(), ids=READ)
@pytest.mark.parametrize("epochs", [2, 5])
def test_sums_that_are_read_an_epoch_later_are_named(tmp_path: Path, body: str, epochs: int) -> None:
    (odd,) = said(tmp_path, body, epochs=epochs)
    assert "Sums." in odd
    assert "gridml.Program(..., overlap=False)" in odd


@pytest.mark.parametrize("dtype", ["int64", "int8", "float32"])
def test_counts_are_named_beside_sums(tmp_path: Path, dtype: str) -> None:
    (odd,) = said(tmp_path, K_MEANS, dtype=dtype)
    assert f"{SAID} Sums.n, Sums.s." in odd


@pytest.mark.parametrize("reader", ["2", "EPOCHS - 1"])
def test_sums_of_the_second_epoch_are_named(tmp_path: Path, reader: str) -> None:
    body = (
        "    if e == 1:\n        sums.s[0] += x.sum()\n"
        f"    elif e == {reader}:\n        weights.w += sums.s[0].astype('float32') / COUNT\n"
    )
    (odd,) = said(tmp_path, body, epochs=5)
    assert f"{SAID} Sums.s." in odd


def test_a_running_maximum_of_counts_is_named(tmp_path: Path) -> None:
    body = (
        "    if e == 0:\n        sums.n[0] = np.maximum(sums.n[0], len(x) + 7)\n"
        "    else:\n        weights.w += sums.n[0].astype('float32') / COUNT\n"
    )
    (odd,) = said(tmp_path, body, dtype="int64", rule='gridml.by_name({"*": gridml.maximum()})')
    assert f"{SAID} Sums.n." in odd


@pytest.mark.parametrize("body", NOT_READ.values(), ids=NOT_READ)
def test_what_overlap_would_not_make_complete_is_no_reason_to_warn(tmp_path: Path, body: str) -> None:
    assert said(tmp_path, body) == []
    assert said(tmp_path, body, dtype="float32", epochs=2) == []


@pytest.mark.parametrize(
    "otherwise",
    [
        {"more": ", overlap=False"},
        {"epochs": 1},
        {"rule": "gridml.mean()"},
        {"body": f"{K_MEANS}    points.x[:] = x\n"},  # an epoch is then leased once all of the one before is credited
    ],
)
def test_nothing_is_said_where_epochs_do_not_overlap_or_nothing_is_added(
    tmp_path: Path, otherwise: dict[str, str]
) -> None:
    assert said(tmp_path, **{"body": K_MEANS, **otherwise}) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "body", "why"),
    [
        ("__import__('os').mkdir('once')\n", K_MEANS, "sums.py cannot be loaded: FileExistsError: "),
        (
            "",
            f"    if not cache:\n        cache[9] = __import__('os').mkdir('once')\n{K_MEANS}",
            "first batch: FileExistsError: ",
        ),
        (
            "",
            f"    assert e == 0 or sums.n[e].sum() == COUNT, 'few'\n{K_MEANS}",
            "in epoch 2 f fails on the sums of one",
        ),
    ],
)
def test_what_is_not_checked_is_said_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, body: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (odd,) = said(tmp_path, body, first=first, about="it was not checked whether f reads sums of earlier epochs")
    assert why in odd and "overlap=False" in odd
    assert "\n" not in odd


def test_sums_in_a_module_are_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = (Path(__file__).parents[2] / "programs" / "in_turn_modules.py").read_text()
    assert text.count(", overlap=False") == 1
    text = text.replace("!= COUNT // NETWORKS or float(model.level[epoch - 1]) == 0", "== 0")
    (tmp_path / "sums.py").write_text(text.replace(", overlap=False", ""))
    odd = [each for each in try_out(tmp_path / "sums.py").odd if SAID in each]
    assert len(odd) == 1 and "Network/0/model/sums" in odd[0]
    (tmp_path / "sums.py").write_text(text)
    assert not any(SAID in each for each in try_out(tmp_path / "sums.py").odd)


MANY = """
import numpy as np
import gridml

NAMES = [f"s{i}" for i in range(30)]
with open("loads", "a") as file:
    file.write(".")


class Sums(gridml.Vertex):
    locals().update({name: gridml.array("float64", (4,)) for name in NAMES})
    aggregate = gridml.add()


class Point(gridml.Vertex):
    x = gridml.array("float64")
    sums = gridml.edge(Sums)


@gridml.update(batch=10)
def f(points: gridml.Batch[Point], sums: Sums, at: gridml.Progress) -> None:
    for name in NAMES:
        field = getattr(sums, name)
        field[at.epoch + 1] += points.x.sum() + field[at.epoch]


def graph():
    g = gridml.Graph()
    sums = g.add(Sums, **{name: np.ones((1, 4)) for name in NAMES})
    g.add(Point, x=np.arange(40.0), sums=sums)
    return g


program = gridml.Program(graph, f, epochs=3)
"""


def test_the_file_is_loaded_a_bounded_number_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.py").write_text(MANY)
    (odd,) = [each for each in try_out(tmp_path / "sums.py").odd if SAID in each]
    assert "Sums.s0, Sums.s1, Sums.s10 and 27 more, or to some of these" in odd
    assert len((tmp_path / "loads").read_text()) <= MAX_LOADS
