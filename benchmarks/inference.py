"""Measure what `gridml.infer` says of users and chapters that a run has not seen, by the programs of examples/.

MovieLens: every tenth user is left out of the training of examples/mf.py. Four fifths of such a user's ratings are
then given to `gridml.infer`, and the others are predicted. King James Bible: the first halves of the chapters that
examples/lda.py holds out are given, as every other word, and the others are predicted. Runs have one worker.

    python -m benchmarks.inference
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gridml
from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write

EXAMPLES = Path(__file__).parents[1] / "examples"
EPOCHS = sized((20, 15), (1, 1))
PASSES = sized((1, 10, 100), (1, 2))
COPIES = sized(50, 2)  # of a chapter in one call: each draws other numbers
RATE = 0.02  # with which examples/mf.py begins
EVERY = 10  # users
_TRAINED = "train = np.flatnonzero(~held_out)"


def main() -> None:
    numbers(__doc__)
    with tempfile.TemporaryDirectory(prefix="inference-") as folder:
        rows = [*ratings(Path(folder)), *topics(Path(folder))]
    write(
        "inference",
        "New users and chapters, inferred from a trained replica",
        rows,
        [
            f"ratings: RMSE of a fifth of the ratings of every {EVERY}th user; together: these users' other ratings "
            f"were trained like those of all; inferred: from the run without these users, with rate {RATE}",
            "topics: perplexity of every second word of the chapters held out; expectation and maximisation: as "
            "evaluate of the example computes it; inferred: the mixture is that of the topics of the last pass, of one "
            "vertex for each chapter, or the mean of several copies, which draw other numbers",
            "CPU-s: of the call of gridml.infer in this process, with what it reads and compiles",
        ],
    )


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"inference_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(program: Path, root: Path, epochs: int) -> gridml.Run:
    return gridml.simulate(program, workers=1, cost="t_x=0.001,push=0.1", run_dir=root, epochs=epochs, seed=1)


def timed(run: gridml.Run, new: Mapping[str, Any], passes: int) -> tuple[dict[str, NDArray[Any]], float]:
    began = time.process_time()
    found = gridml.infer(run, new, passes=passes)
    return found, round(time.process_time() - began, 2)


def ratings(folder: Path) -> list[dict[str, Cell]]:
    """Return the errors of predicted ratings."""
    text = (EXAMPLES / "mf.py").read_text()
    assert text.count(_TRAINED) == 1
    asked = "np.random.default_rng(2).random(len(ratings.stars)) < 0.2"
    of_new = f"(ratings.user % {EVERY} == 0)"
    runs = {}
    for name, out in (("together", f"{of_new} & ({asked})"), ("apart", of_new)):
        program = folder / f"mf_{name}.py"
        program.write_text(text.replace(_TRAINED, f"train = np.flatnonzero(~({out}))"))
        runs[name] = run(program, folder / name, EPOCHS[0])
    data = gridml.datasets.movielens()
    is_new, is_asked = data.user % EVERY == 0, np.random.default_rng(2).random(len(data.stars)) < 0.2
    given = np.flatnonzero(is_new & ~is_asked)
    given = given[np.argsort(data.user[given], kind="stable")]
    asked_at = np.flatnonzero(is_new & is_asked)
    users = np.arange(0, data.users, EVERY)
    offsets = np.concatenate([[0], np.searchsorted(data.user[given], users, side="right")])

    def error(found: Mapping[str, NDArray[Any]], bias: NDArray[Any], p: NDArray[Any]) -> float:
        user, item = data.user[asked_at] // EVERY, data.item[asked_at]
        guess = (
            found["Shared.mean"][0] + bias[user] + found["Item.bias"][item] + (p[user] * found["Item.q"][item]).sum(1)
        )
        return round(float(np.sqrt(np.square(guess.clip(1, 5) - data.stars[asked_at]).mean())), 4)

    together, apart = (gridml.load(runs[name]) for name in ("together", "apart"))
    zero = np.zeros(len(users), np.float32), np.zeros_like(apart["User.p"][: len(users)])
    rows: list[dict[str, Cell]] = [
        {
            "of": "ratings",
            "how": "together",
            "error": error(together, together["User.bias"][users], together["User.p"][users]),
        },
        {"of": "ratings", "how": "mean and bias of the item", "error": error(apart, *zero)},
    ]
    rated = gridml.csr(offsets, data.item[given], data.stars[given])
    for passes in PASSES:
        new = {"User": {"bias": 0, "p": 0, "rated": rated}, "Shared": {"rate": RATE}}
        found, cpu_s = timed(runs["apart"], new, passes)
        of = error(apart, found["User.bias"], found["User.p"])
        rows.append(
            {"of": "ratings", "how": f"inferred, {passes} pass{'es' * (passes > 1)}", "error": of, "CPU-s": cpu_s}
        )
    return rows


def topics(folder: Path) -> list[dict[str, Cell]]:
    """Return the perplexities of predicted words."""
    example = module_of(EXAMPLES / "lda.py")
    trained = run(EXAMPLES / "lda.py", folder / "lda", EPOCHS[1])
    found, (_, held_out) = gridml.load(trained), example.chapters()
    phi = found["Word.count"] + example.BETA
    phi = phi / phi.sum(0)
    rows: list[dict[str, Cell]] = [
        {
            "of": "topics",
            "how": "expectation and maximisation",
            "error": round(held_out.perplexity(phi, example.ALPHA), 1),
        }
    ]
    for passes, copies in ((1, 1), (20, 1), (20, COPIES)):
        halves = [held_out[at][::2] for at in range(len(held_out)) for _ in range(copies)]
        words = gridml.csr(np.cumsum([0, *map(len, halves)]), np.concatenate(halves), topic=0)
        drawn, cpu_s = timed(trained, {"Chapter": {"words": words}, "Corpus": {"counted": 0}}, passes)
        text = np.repeat(np.arange(len(held_out)), copies).repeat([len(half) for half in halves])
        place = text * example.TOPICS + drawn["Chapter.words.topic"]
        count = np.bincount(place, minlength=len(held_out) * example.TOPICS)
        theta = count.reshape(-1, example.TOPICS) / copies + example.ALPHA
        theta /= theta.sum(1, keepdims=True)
        logs = [np.log(phi[held_out[at][1::2]] @ theta[at]) for at in range(len(held_out))]
        of = round(float(np.exp(-np.concatenate(logs).mean())), 1)
        how = f"inferred, {passes} pass{'es' * (passes > 1)}" + f", mean of {copies} copies" * (copies > 1)
        rows.append({"of": "topics", "how": how, "error": of, "CPU-s": cpu_s})
    return rows


if __name__ == "__main__":
    main()
