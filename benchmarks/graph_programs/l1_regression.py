"""Compare l1 logistic regression by stages, in one process, with liblinear, celer and skglm.

The stages are those of examples/lr_newton.py, and where features are few also of lr_pairs.py. Every solver gets the
loosest of its tolerances with which the objective is within a thousandth of the best that any finds. All take turns, on
one thread. Machine code is compiled before, and what that takes is listed. Solvers that are not installed are left out.

    python -m benchmarks.graph_programs.l1_regression
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix, csr_matrix

import gridml
from benchmarks.arguments import numbers, sized
from benchmarks.table import Cell, write
from gridml.model.loading import load
from gridml.model.program import Program

EXAMPLES = Path(__file__).parents[2] / "examples"
OURS, PAIRS, FEW = "gridml", "gridml, pairs", 1_000  # by lr_newton; by lr_pairs, for FEW features at most
GAP, TIGHT = 1e-3, 1e-6  # of the objective; of its agreement
SHARES = (0.05, 0.01)  # of the smallest weight of the penalty with which nothing is used
ROUNDS, EVERY = sized((5, 6), (1, 400))
NOTES = [
    "λ: in parts of the smallest with which no feature is used; objective: Σ log(1 + exp(-y·xᵀw)) + λ·|w|₁, without an "
    f"intercept; CPU seconds to within {GAP:g} of the best, medians of {ROUNDS} turns; ratio: gridml's to those of the "
    "fastest other",
    f"agreement: gridml's objective with tight tolerances over the best of all, less 1; {TIGHT:g} is wanted",
    "gridml: all of gridml.compute for a program that is loaded: the graph from arrays, edges by their ends, passes, "
    "results; first: the first call, with what is compiled then. celer and skglm are given the matrix by columns, "
    "liblinear by rows, which it turns itself. gridml: lr_newton.py; gridml, pairs: lr_pairs.py, for few features",
    "reviews: every sixth review of films (IMDB), words and pairs of words, rows of length 1; adult: a9a, 32,560 rows "
    "of 14 of 123 features; drawn: 3,000 rows of 60 of 20,000 features, whose popularity falls as 1/rank, labels by "
    "hidden weights of a hundredth of them, with noise",
]
# lr_pairs.py leaves rare words out, and here all are wanted.
ALL_WORDS = (
    ("    common = word < FEATURES  # the vocabulary begins with the most frequent\n", ""),
    ("np.append(0, np.cumsum(common))[offsets], word[common], weight=x[common]", "offsets, word, weight=x"),
)
Array = NDArray[Any]
Solver = Callable[[csr_matrix, csc_matrix, Array, float, float], Array]


class Data(NamedTuple):
    """Samples with labels of 1 and -1."""

    name: str
    rows: csr_matrix
    label: Array

    def objective(self, w: Array, penalty: float) -> float:
        return float(np.logaddexp(0, -self.label * (self.rows @ w)).sum() + penalty * np.abs(w).sum())

    @property
    def largest(self) -> float:
        """The smallest penalty with which no feature is used."""
        return float(np.abs(self.rows.T @ self.label).max() / 2)


def reviews() -> Data:
    """Read every sixth review. Raises FileNotFoundError without the data."""
    path = Path(os.environ.get("GRIDML_DATA", "data")) / "text" / "imdb_train_bigram.svm.gz"
    with gzip.open(path, "rt") as file:
        lines = [line.split() for number, line in enumerate(file) if number % EVERY == 0]
    pairs = [[pair.split(":") for pair in line[1:]] for line in lines]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in pairs])])
    _, feature = np.unique([int(name) for each in pairs for name, _ in each], return_inverse=True)
    x = np.array([float(value) for each in pairs for _, value in each])
    x /= np.repeat(np.sqrt(np.add.reduceat(x**2, offsets[:-1])), np.diff(offsets))
    stars = np.array([float(line[0]) for line in lines])
    return Data("reviews", csr_matrix((x, feature, offsets)), np.where(stars > np.median(stars), 1.0, -1.0))


def adult() -> Data:
    """Read a9a: few features, each in many rows. Raises FileNotFoundError without the data."""
    path = Path(os.environ.get("GRIDML_DATA", "data")) / "libsvm" / "a9a.gz"
    with gzip.open(path, "rt") as file:
        lines = [line.split() for line in file]
    feature = np.array([int(pair.partition(":")[0]) - 1 for line in lines for pair in line[1:]], np.int32)
    offsets = np.cumsum([0, *(len(line) - 1 for line in lines)], dtype=np.int32)
    label = np.array([1.0 if float(line[0]) > 0 else -1.0 for line in lines])
    return Data("adult", csr_matrix((np.ones(len(feature)), feature, offsets)), label)


def drawn() -> Data:
    """Draw samples, of which a few features decide."""
    rows, features, each = sized((3_000, 20_000, 60), (200, 500, 10))
    rng = np.random.default_rng(3)
    popular = 1 / np.arange(1, features + 1)
    feature = np.array([rng.choice(features, each, replace=False, p=popular / popular.sum()) for _ in range(rows)])
    x, hidden = rng.normal(size=feature.shape), rng.normal(size=features) * (rng.random(features) < 0.01) * 3
    label = np.where((x * hidden[feature]).sum(1) + rng.normal(size=rows) > 0, 1.0, -1.0)
    matrix = csr_matrix((x.ravel(), feature.ravel(), np.arange(rows + 1) * each), shape=(rows, features))
    matrix.sort_indices()
    return Data("drawn", matrix, label)


def liblinear(rows: csr_matrix, columns: csc_matrix, label: Array, penalty: float, tolerance: float) -> Array:
    options: dict[str, Any] = {"solver": "liblinear", "fit_intercept": False, "max_iter": 1000, "random_state": 0}
    models: Any = importlib.import_module("sklearn.linear_model")
    made = models.LogisticRegression(penalty="l1", C=1 / penalty, tol=tolerance, **options)
    return np.asarray(made.fit(rows, label).coef_.ravel())


def celer(rows: csr_matrix, columns: csc_matrix, label: Array, penalty: float, tolerance: float) -> Array:
    package: Any = importlib.import_module("celer")
    made = package.LogisticRegression(C=1 / penalty, fit_intercept=False, tol=tolerance, max_iter=50)
    return np.asarray(made.fit(columns, label).coef_.ravel())


def skglm(rows: csr_matrix, columns: csc_matrix, label: Array, penalty: float, tolerance: float) -> Array:
    names = ("skglm", "skglm.datafits", "skglm.penalties", "skglm.solvers")
    package, datafits, penalties, solvers_of = map(importlib.import_module, names)
    solver = solvers_of.ProxNewton(tol=tolerance, fit_intercept=False)
    made = package.GeneralizedLinearEstimator(datafits.Logistic(), penalties.L1(penalty / len(label)), solver)
    return np.asarray(made.fit(columns, label).coef_.ravel())


class ByStages:
    """gridml, with the stages of an example, which is loaded once for each number of features."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._programs: dict[int, Program] = {}

    def __call__(self, rows: csr_matrix, columns: csc_matrix, label: Array, penalty: float, tolerance: float) -> Array:
        features = rows.shape[1]
        if features not in self._programs:
            self._programs[features] = self._loaded(features)
        program = self._programs[features]
        data = label, rows.indptr, rows.indices, rows.data, np.arange(features)
        given: dict[str, Any] = program.graph.__globals__
        given |= {"LAMBDA": penalty, "ENOUGH": tolerance, "GIVEN": data}
        return np.asarray(gridml.compute(program, threads=1).arrays["Feature.w"])

    def _loaded(self, features: int) -> Program:
        text = (EXAMPLES / f"{self._name}.py").read_text(encoding="utf-8")
        for old, new in (
            ("from lr import LAMBDA, chapters, evaluate\n", "LAMBDA, GIVEN = 1.0, None\n"),
            ("chapters(held=False)", "GIVEN"),
            (" evaluate, epochs=100", " epochs=1000"),
            ("ids=vocabulary, ", ""),
        ):
            assert text.count(old) == 1, f"{self._name}.py lacks {old!r}"
            text = text.replace(old, new)
        for old, new in ALL_WORDS:
            text = text.replace(old, new)
        path = self._folder / f"{self._name}_{features}.py"
        path.write_text(text.replace("ENOUGH = 100, ", f"ENOUGH = {features}, "), encoding="utf-8")
        return load(path)


LADDERS = {
    "liblinear": (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-7),
    "celer": (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-8),
    "skglm": (1e-2, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-8),
    OURS: (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-8),
    PAIRS: (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-8),
}


def solvers(folder: Path) -> dict[str, Solver]:
    """Return what is installed, by name."""
    needed = {"liblinear": ("sklearn", liblinear), "celer": ("celer", celer), "skglm": ("skglm", skglm)}
    found: dict[str, Solver] = {n: solve for n, (module, solve) in needed.items() if importlib.util.find_spec(module)}
    return {**found, OURS: ByStages(folder, "lr_newton"), PAIRS: ByStages(folder, "lr_pairs")}


def timed(solve: Callable[[float], Array], tolerance: float) -> tuple[float, Array]:
    began_s = time.process_time()
    w = solve(tolerance)
    return time.process_time() - began_s, w


def rows_of(data: Data, found: dict[str, Solver]) -> Iterator[dict[str, Cell]]:
    """Yield a line for each penalty and solver."""
    for share in SHARES:
        penalty = share * data.largest
        columns = csc_matrix(data.rows)
        fitting = [name for name in found if name != PAIRS or columns.shape[1] <= FEW]
        with_data = {n: partial(found[n], data.rows, columns, data.label, penalty) for n in fitting}
        first = {name: timed(solve, LADDERS[name][0])[0] for name, solve in with_data.items()}
        tight = {name: data.objective(solve(LADDERS[name][-1]), penalty) for name, solve in with_data.items()}
        best = min(tight.values())
        chosen = {}
        for name, solve in with_data.items():
            reached = ((each, data.objective(solve(each), penalty) / best - 1) for each in LADDERS[name])
            chosen[name] = next((each for each, gap in reached if gap <= GAP), LADDERS[name][-1])
        turns: dict[str, list[float]] = {name: [] for name in with_data}
        for _ in range(ROUNDS):
            for name, solve in with_data.items():
                turns[name].append(timed(solve, chosen[name])[0])
        spent = {name: statistics.median(each) for name, each in turns.items()}
        others = [seconds for name, seconds in spent.items() if name not in (OURS, PAIRS)]
        for name, solve in with_data.items():
            w = solve(chosen[name])
            row: dict[str, Cell] = {"data": data.name, "λ": share, "solver": name, "tolerance": chosen[name]}
            row |= {"CPU s": round(spent[name], 3), "first": round(first[name], 2)}
            row |= {"gap": f"{data.objective(w, penalty) / best - 1:.1e}", "used": int(np.count_nonzero(w))}
            if name in (OURS, PAIRS):
                row |= {"agreement": f"{tight[name] / best - 1:.1e}"}
                row |= {"ratio": round(spent[name] / min(others), 2)} if others else {}
            print(row, flush=True)
            yield row


def main() -> None:
    numbers(__doc__)
    rows: list[dict[str, Cell]] = []
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of solvers that stop before they converge, as they are asked to
        found = solvers(Path(folder))
        for make in (drawn, *sized((reviews, adult), ())):
            rows += rows_of(make(), found)
            write("graph_l1_regression", "l1 logistic regression: CPU seconds to the optimum", rows, NOTES)


if __name__ == "__main__":
    main()
