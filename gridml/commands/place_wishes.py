"""Arguments of `gridml place` that say what parts are to have and can do, and what rows and columns weigh."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridml.errors import UsageError

if TYPE_CHECKING:
    from gridml.placement.rates import Rates

EDGES = "edges"  # as weights of rows: each has as much work as it has columns
Shares = Annotated[
    str | None,
    typer.Option(metavar="X,Y,...", help="How much of the work each part gets: 2,1,1; otherwise the same."),
]
RowWeights = Annotated[
    str | None,
    typer.Option(metavar="edges|FILE.npy", help="Work of each row: its columns, or numbers; otherwise 1."),
]
ColumnWeights = Annotated[Path | None, typer.Option(metavar="FILE.npy", help="Bytes of each column; otherwise 1.")]
MemoryLimit = Annotated[int | None, typer.Option(metavar="N", help="No part may touch more, in weights of columns.")]
Topology = Annotated[str, typer.Option(help="mesh: part i serves its columns to others; star: a master serves all.")]
Bandwidth = Annotated[
    str | None,
    typer.Option(metavar="X[,Y,...]", help="Bytes/s of every part, or of each; says the seconds of a round."),
]
Speed = Annotated[
    str | None, typer.Option(metavar="X[,Y,...]", help="Work/s of every part, or of each; with --bandwidth.")
]
MasterBandwidth = Annotated[
    float | None, typer.Option(metavar="X", help="Bytes/s of the master of a star; with --bandwidth.")
]


def rates(topology: str, bandwidth: str | None, speed: str | None, master: float | None) -> Rates | None:
    """Return what is said of the parts' machines, or None. Raises UsageError where one thing lacks another."""
    from gridml.placement.base import STAR
    from gridml.placement.rates import Rates

    if bandwidth is None:
        for name, value in (("--speed", speed), ("--master-bandwidth", master)):
            if value is not None:
                raise UsageError(f"got {name} alone: seconds are predicted from it and --bandwidth. Give both.")
        return None
    if master is not None and topology != STAR:
        raise UsageError(f"got --master-bandwidth in a {topology}, which has no master; expected it with a star.")
    return Rates(numbers("--bandwidth", bandwidth), None if speed is None else numbers("--speed", speed), master)


def numbers(name: str, text: str) -> tuple[float, ...]:
    """Return numbers between commas. Raises UsageError for anything else."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f"{name} is {text!r}; expected numbers with commas between them, such as 2,1,1.") from None
