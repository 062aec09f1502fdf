"""The papers' tables of improvements, beside what gridml measures on the nearest data sets that are available.

Table 2 of Li, Andersen and Smola (Parsa, 16 parts) and table 5 of Duan, Wang and Wu (8 parts). For table 2 the rows of
`results/placement.md` are used; table 5 is measured here, by methods as printed and by gridml's own.

    GRIDML_DATA=... python -m benchmarks.placement.published [--trials N] [--graph GRAPH ...] [--method METHOD ...]
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.arguments import parser_of, sized
from benchmarks.placement.graphs import clicks, graph, names, uniform
from benchmarks.placement.peers import PEERS
from benchmarks.placement.points import Made, made
from benchmarks.table import RESULTS, Cell, results, write
from gridml.placement.auto import find
from gridml.placement.base import Options
from gridml.placement.bipartite import Bipartite
from gridml.placement.tsh import TshOptions
from gridml.placement.tsh_printed import PrintedTshOptions

NAME = "placement_published"
PARTS = 8  # of table 5


class Data(NamedTuple):
    """A data set of the papers, and what the tables print for it: improvements over random in %."""

    nearest: str  #: the nearest graph of `benchmarks.placement.graphs`
    parsa: dict[str, tuple[float, float, float]]  #: table 2: the largest memory, the largest and the total traffic
    duan: dict[str, float]  #: table 5: the largest traffic


PUBLISHED = {
    "rcv1": Data(
        "imdb words",
        {"PaToH": (19, 26, 279), "Zoltan": (17, 105, 154), "parsa": (33, 112, 108)},
        {"TSH-1": 109, "TSH-2": 111, "MBP": 103, "PaToH": 42},
    ),
    "news20": Data(
        "20news",
        {"PaToH": (2, 123, 389), "Zoltan": (0, 214, 267), "parsa": (21, 187, 155)},
        {"TSH-1": 184, "TSH-2": 193, "MBP": 175, "PaToH": 106},
    ),
    "CTRa": Data(
        "clicks",
        {"PaToH": (8, 446, 970), "Zoltan": (70, 1052, 1211), "parsa": (91, 922, 913)},
        {"TSH-1": 906, "TSH-2": 951, "MBP": 1371, "PaToH": 607},
    ),
    "KDDa": Data(
        "imdb bigrams", {"PaToH": (54, 905, 1102), "Zoltan": (4, 238, 313), "parsa": (120, 1973, 1978)}, {}
    ),
    "live-journal": Data(
        "slashdot",
        {
            "METIS": (185, 231, 279), "PaToH": (103, 152, 160), "Zoltan": (50, 84, 386), "greedy": (61, 84, 89),
            "parsa": (142, 216, 214),
        },
        {"TSH-1": 175, "TSH-2": 183, "MBP": 82, "PaToH": 193},
    ),
    "orkut": Data(
        "facebook",
        {
            "METIS": (56, 74, 103), "PaToH": (87, 145, 150), "Zoltan": (49, 170, 180), "greedy": (55, 74, 78),
            "parsa": (105, 177, 121),
        },
        {},
    ),
}  # fmt: skip
FOR_TABLE_2 = {"clicks": "clicks, 1M rows"}  # the names of placement.md, where they differ
# Methods as printed take O(n²) time, so the graphs of table 5 are smaller.
FOR_TABLE_5 = {
    "20news": "20news, 2k rows",
    "imdb words": "imdb words, 2k rows",
    "clicks": "clicks, 3k rows",
    "slashdot": "facebook",
}
SOME_ROWS = 2000  # of the words, drawn at random
OPTIONS: dict[str, tuple[str, Callable[[int], Options]]] = {
    "TSH-1 as printed": ("tsh-printed", lambda seed: PrintedTshOptions(seed, alpha=1)),
    "TSH-2 as printed": ("tsh-printed", lambda seed: PrintedTshOptions(seed, alpha=2)),
    "TSH-2 as printed, sampled": ("tsh-printed", lambda seed: PrintedTshOptions(seed, alpha=2, sampled=True)),
    "MBP as printed": ("mbp-printed", Options),
    "tsh, 1 row": ("tsh", lambda seed: TshOptions(seed, step=1)),
    "tsh": ("tsh", Options),
    "mbp": ("mbp", Options),
    "parsa": ("parsa", Options),
    "multilevel": ("multilevel", Options),
}
MORE = ("ibm01", "powersim", "ca-condmat")  # small graphs that are not in the tables
SMALLEST = "uniform, 300"


def main() -> None:
    asked = parser_of(__doc__)
    asked.add_argument("--trials", type=int, default=sized(2, 1))
    graphs = [*MORE, *(FOR_TABLE_5.get(data.nearest, data.nearest) for data in PUBLISHED.values() if data.duan)]
    asked.add_argument("--graph", nargs="+", default=sized(graphs, [SMALLEST]))
    asked.add_argument("--method", nargs="+", choices=list(OPTIONS), default=list(OPTIONS))
    chosen = asked.parse_args()
    path = results() / f"{NAME}.json"
    kept: list[dict[str, Cell]] = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {(row["graph"], row["method"]): row for row in kept if row["table"] == "Duan 5"}
    for name in chosen.graph:
        given = _graph(name)
        if given is None:
            print(f"{name} is not available: GRIDML_DATA does not have it", flush=True)
            continue
        for method in chosen.method:
            placed, options = OPTIONS[method]
            found[name, method] = duan_row(name, method, made(given, find(placed), PARTS, options, chosen.trials))
            print(found[name, method], flush=True)
    peer = "was measured" if "PaToH" in PEERS else "is not installed here (no program `patoh`; PATOH can name one)"
    write(
        NAME,
        "The papers' tables, and the nearest that is available",
        [*table_2(), *found.values()],
        [
            "Parsa 2: table 2 of Li, Andersen and Smola, 16 parts; Duan 5: table 5 of Duan, Wang and Wu, 8 parts; "
            "M, T, S: improvement over random in % of the largest memory, of the largest and of the total traffic, "
            "printed and measured here. The measured ones of table 2 are those of placement.md; its PowerGraph is "
            "`greedy` here",
            "the papers' data sets are not at hand, and CTRa was never published: 20news (words of 20 Newsgroups) "
            "stands for news20, imdb words for rcv1, imdb bigrams for KDDa, slashdot for live-journal, facebook for it "
            "in table 5 and for orkut, synthetic clicks for CTRa. So only the order of methods can be compared",
            "table 5 is measured on smaller graphs, because the methods as printed take O(n²) time and more: 2,000 "
            "random rows of the words, 3,000 rows of clicks, facebook's 3,663; and on three graphs of no table",
            f"PaToH {peer}",
            "CPU s: of the placement; the machine had other load; means of 2 seeds, as many as `seeds` says",
        ],
    )


def table_2() -> list[dict[str, Cell]]:
    """Return the lines of Parsa's table 2, with what placement.md has measured."""
    rows = json.loads((RESULTS / "placement.json").read_text(encoding="utf-8"))["rows"]
    measured = {(row["graph"], row["method"]): row for row in rows if row.get("M") is not None}
    lines = []
    for data, (nearest, printed, _) in PUBLISHED.items():
        name = FOR_TABLE_2.get(nearest, nearest)
        for method, figures in printed.items():
            line: dict[str, Cell] = {"table": "Parsa 2", "data": data, "graph": name, "method": method}
            line |= {f"{figure}, printed": value for figure, value in zip("MTS", figures, strict=True)}
            own = measured.get((name, method))
            lines.append(line | ({} if own is None else {key: own[key] for key in ("M", "T", "S", "CPU s", "seeds")}))
    return lines


def duan_row(name: str, method: str, placements: Made) -> dict[str, Cell]:
    """Return a line of Duan's table 5, with the printed figure of the method that it resembles."""
    resembles = {"TSH-1": "TSH-1", "TSH-2": "TSH-2", "MBP": "MBP", "tsh, ": "TSH-1", "tsh": "TSH-2", "mbp": "MBP"}
    printed = next((paper for own, paper in resembles.items() if method.startswith(own)), None)
    data = next((key for key, each in PUBLISHED.items() if FOR_TABLE_5.get(each.nearest, each.nearest) == name), None)
    line: dict[str, Cell] = {"table": "Duan 5", "data": data, "graph": name, "method": method}
    if data is not None and printed is not None:
        line["T, printed"] = PUBLISHED[data].duan[printed]
    values = placements.values
    line |= {figure: values[figure] for figure in "MTS"}
    return line | {"CPU s": values["s"], "seeds": len(placements.costs)}


def _graph(name: str) -> Bipartite | None:
    """Return a graph of table 5; None if its file is not available."""
    if name == SMALLEST:
        return uniform(5, 300)
    if name.startswith("clicks"):
        return clicks(3_000, 20, 4)
    whole = name.partition(", ")[0]
    if whole not in names():
        return None
    if whole == name:
        return graph(name)
    given = graph(whole)
    return given.only(np.sort(np.random.default_rng(0).permutation(given.rows)[:SOME_ROWS]))


if __name__ == "__main__":
    main()
