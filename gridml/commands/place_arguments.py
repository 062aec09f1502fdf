"""Arguments of `gridml place` for graphs that are not bipartite, and for those that were placed before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Kind = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="ROWS",
        help="What rows are: bipartite, the first of an edge's two numbers; of a general graph, such as most of "
        "SNAP's, vertices, each with its neighbours, edges, each with both ends, or cliques.",
    ),
]
Earlier = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="DIR",
        help="An earlier placement of GRAPH, which may have grown. Rows stay where they are; on another -k few of them "
        "move: of fewer parts the last are gone, of more they are new.",
    ),
]
Lost = Annotated[
    str | None,
    typer.Option(metavar="N,N", help="With --from: parts that are gone instead of the last; those after move up."),
]
MoveCost = Annotated[
    float | None,
    typer.Option(help="With --from: a row moves if that saves more than so many times a mean row's columns."),
]
