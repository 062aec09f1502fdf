"""`gridml place`: the rows and columns of a graph on parts, so that little must be held and travel.

Arguments of `gridml place` for graphs that are not bipartite, and for those that were placed before.

Arguments of `gridml place` that say what parts are to have and can do, and what rows and columns weigh.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridml.cli.arguments import Json
from gridml.errors import UsageError

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


if TYPE_CHECKING:
    from gridml.placement.base import Rates

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
    from gridml.placement.base import STAR, Rates

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


EXAMPLE = "Example: gridml place ratings.tsv.gz -k 16 --out placed --plot placed.png"


def place(
    graph: Annotated[
        Path,
        typer.Argument(
            metavar="GRAPH",
            help="Rows, which are data, and the columns that they touch: libsvm (.svm), Matrix Market (.mtx), a list "
            "of edges (.edges, .tsv, .csv, .txt), hMETIS (.hgr), each also as .gz, .bz2 or .xz, or a pipe (--format); "
            "scipy's .npz, or a folder that --store wrote (.csr, csr-folder).",
            show_default=False,
        ),
    ],
    parts: Annotated[int, typer.Option("-k", "--parts", metavar="N", help="Parts to place them on.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Gets u_part.npy and v_part.npy, the part of each row and column, and quality.json; u_ids.npy and "
            "v_ids.npy, their numbers in a list of edges; graph.npz, the rows that --as edges or cliques made.",
        ),
    ],
    method: Annotated[
        str,
        typer.Option(help="How: auto, parsa, refined, multilevel, tsh, mbp, greedy, random, random-served."),
    ] = "auto",
    objective: Annotated[
        str,
        typer.Option(
            help="What is to be small: the largest memory or traffic of a part, total traffic, duan (the largest work "
            "times the largest traffic) or seconds (of a round; needs --bandwidth)."
        ),
    ] = "memory",
    seconds: Annotated[float | None, typer.Option(help="What --method auto may take; otherwise 60.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is left to chance; the same gives the same parts.")] = 0,
    slack: Annotated[float, typer.Option(help="Work that a part may have beyond its share: 0.05 are 5%.")] = 0.0,
    shares: Shares = None,
    row_weights: RowWeights = None,
    column_weights: ColumnWeights = None,
    memory_limit: MemoryLimit = None,
    topology: Topology = "mesh",
    bandwidth: Bandwidth = None,
    speed: Speed = None,
    master_bandwidth: MasterBandwidth = None,
    kind: Kind = "bipartite",
    earlier: Earlier = None,
    lost: Lost = None,
    move_cost: MoveCost = None,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="libsvm, matrix-market, edges, hmetis, npz or csr-folder; otherwise what the name says.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="First write GRAPH to a new folder, and place it from there: parsa then keeps only a few blocks of it "
            "in memory. libsvm is never read into memory for this.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw each part's columns and traffic into a .png, .pdf or .svg."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Place data and parameters on parts, and say how good that is.

    Each row of GRAPH touches columns. Rows that touch the same columns are put together, and each column where it is
    used, so that a part holds few columns and few travel. quality.json compares that with rows and columns placed at
    random: M_max and T_max are the largest memory and traffic of a part, T_sum is the traffic of all, in columns.
    """
    from gridml.placement.again import Again, AgainOptions, Before, Moved
    from gridml.placement.auto import AutoOptions, find
    from gridml.placement.base import Options, options_of
    from gridml.placement.files import registry as files
    from gridml.placement.files.registry import read_weights
    from gridml.placement.folder import Names, before, check_free, save, without
    from gridml.placement.quality import measured
    from master.views.console import json_text
    from master.views.render_plan import print_quality, work_shown

    for name, value, least in (("-k", parts, 1), ("--seed", seed, 0)):
        if value < least:
            raise UsageError(f"{name} is {value}; expected at least {least}.")
    chosen = find(method)
    _check_together(method, kind, store, seconds=seconds, earlier=earlier, changes=(move_cost, lost))
    options = Options(
        seed,
        slack,
        objective,
        shares=None if shares is None else numbers("--shares", shares),
        memory=memory_limit,
        topology=topology,
        rates=rates(topology, bandwidth, speed, master_bandwidth),
    )
    if earlier is not None:
        options = replace(options_of(AgainOptions, options), cost=move_cost)
    elif seconds is not None:
        options = replace(options_of(AutoOptions, options), seconds=seconds)
    works = None if row_weights in (None, EDGES) else read_weights(Path(str(row_weights)))
    sizes = None if column_weights is None else read_weights(column_weights)
    check_free(out)
    was: Before | None = None
    try:
        with work_shown(quiet=as_json) as told:
            if store is not None:
                files.store(graph, store, format_name, lambda read, size: told("storing", read, size))
                graph, format_name = store, None
            given = files.read_numbered(graph, format_name, lambda read, size: told("reading", read, size), kind=kind)
            weighted = given.graph.weighted(given.graph.degrees if row_weights == EDGES else works, sizes)
            if earlier is not None:
                was = before(earlier, given)
                if lost is not None:
                    was = without(was, lost, parts)
                chosen = Again(was)
            told("placing", 0, 0)
            placement, quality = measured(chosen, weighted, parts, options)
            facts = quality.to_json() | (asdict(Moved.between(was, placement)) if was is not None else {})
    except MemoryError as error:
        raise UsageError(
            f"{graph} does not fit into memory: {error}. Expected a smaller graph, or more memory."
        ) from error
    made = given.graph if kind in ("edges", "cliques") else None
    save(out, placement, json_text(facts, indent=2), Names(given.rows, given.columns, made))
    if plot is not None:
        from master.views.plot import plot_quality

        plot_quality(quality, plot)
    if as_json:
        typer.echo(json_text(facts, indent=2))
    else:
        print_quality(quality)


def _check_together(
    method: str,
    kind: str,
    store: Path | None,
    *,
    seconds: float | None,
    earlier: Path | None,
    changes: tuple[float | None, str | None],
) -> None:
    """Raise UsageError for options that exclude one another, or need one another; `changes` are what a placement from
    an earlier one may be told: the cost of a move, and the parts that are lost."""
    if seconds is not None and method != "auto":
        raise UsageError(f"got --seconds with --method {method}, which takes what it takes; expected it with auto.")
    if earlier is not None and (method != "auto" or seconds is not None):
        raise UsageError("got --from with --method or --seconds; expected it alone: it is a way to place.")
    if earlier is None and changes != (None, None):
        raise UsageError("got --move-cost or --lost without --from; expected an earlier placement to move from.")
    if store is not None and kind != "bipartite":
        raise UsageError(f"got --store with --as {kind}; expected it with rows and columns as they are in the file.")
