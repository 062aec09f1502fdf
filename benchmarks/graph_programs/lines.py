"""Count the lines of the graph examples beside the same programs with networkx and GraphFrames.

A line counts if it has more than a comment or a docstring. Each program reads its data, computes and prints what
`evaluate` of the example returns. `networkx` goes over a graph of networkx in plain Python, as the example goes over
its edges; `ready` calls networkx's own function, where there is one; `GraphFrames` is written by its documentation, and
was not run. Tests let all but the last compute the same on small graphs.

    python -m benchmarks.graph_programs.lines
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

from benchmarks.arguments import numbers
from benchmarks.table import Cell, write

EXAMPLES, PEERS = Path(__file__).parents[2] / "examples", Path(__file__).parent / "peers"
NAMES = ("pagerank", "components", "shortest_paths", "label_propagation", "lr", "mf", "lda")
EMPTY = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(text: str) -> int:
    """Return the number of lines that have more than a comment or a docstring."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in EMPTY
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def counted(path: Path) -> int | None:
    """Return the lines of a program; None if there is none."""
    return code_lines(path.read_text(encoding="utf-8")) if path.is_file() else None


def main() -> None:
    numbers(__doc__)
    rows: list[dict[str, Cell]] = []
    for name in NAMES:
        peers = {each: counted(PEERS / f"{name}_{each}.py") for each in ("networkx", "ready", "graphframes")}
        rows.append(
            {
                "program": name,
                "gridml": counted(EXAMPLES / f"{name}.py"),
                "networkx": peers["networkx"],
                "ready": peers["ready"],
                "GraphFrames": peers["graphframes"],
            }
        )
    notes = [
        "lines with more than a comment or a docstring, of whole programs: imports, types, reading, computing, metrics",
        "`networkx`: over a graph of networkx in plain Python, in one process; `ready`: its own function, where it has "
        "one. Both compute the same as the example on small graphs (tests/benchmarks/graph_programs/test_lines.py)",
        "GraphFrames: by its documentation, neither installed nor run here; it has no factorisation, topics or l1 "
        "regression over a graph",
        "left out: how long each took to write and takes to run, and what it needs on machines that come and go",
    ]
    write("graph_lines", "Lines of graph programs", rows, notes)


if __name__ == "__main__":
    main()
