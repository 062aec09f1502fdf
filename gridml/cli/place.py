"""`gridml place`: the rows and columns of a graph on parts, so that little must be held and travel."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from gridml.cli.arguments import Json, answer, takes_options
from gridml.errors import UsageError
from master.state.options import FIRST, FROM_1, Option, check_bounds, option

if TYPE_CHECKING:
    from gridml.placement.base import Options, Rates

EXAMPLE = "Example: gridml place ratings.tsv.gz -k 16 --out placed --plot placed.png"
EDGES = "edges"  # as weights of rows: each has as much work as it has columns


def _numbers(name: str, help: str, metavar: str) -> tuple[float, ...] | None:
    """Numbers, given as a text with commas between them. Reading raises UsageError for anything else."""

    def read(text: str) -> tuple[float, ...]:
        try:
            return tuple(float(number) for number in text.split(","))
        except ValueError:
            raise UsageError(f"{name} is {text!r}; expected numbers with commas between them, such as 2,1,1.") from None

    return option(None, help, metavar=metavar, kind=str, read=read)


@dataclass(frozen=True)
class PlaceOptions:
    """What parts are to have and can do, what rows and columns weigh, and how they are placed. Raises UsageError for
    options that exclude one another, or need one another."""

    PANEL: ClassVar[str] = FIRST
    parts: Annotated[int, Option("Parts to place them on.", flags=("-k", "--parts"), metavar="N", bounds=FROM_1)]
    out: Annotated[
        Path,
        Option(
            "Gets u_part.npy and v_part.npy, the part of each row and column, and quality.json; u_ids.npy and "
            "v_ids.npy, their numbers in a list of edges; graph.npz, the rows that --as edges or cliques made.",
            metavar="DIR",
        ),
    ]
    method: str = option("auto", "How: auto, parsa, refined, multilevel, tsh, mbp, greedy, random, random-served.")
    objective: str = option(
        "memory",
        "What is to be small: the largest memory or traffic of a part, total traffic, duan (the largest work "
        "times the largest traffic) or seconds (of a round; needs --bandwidth).",
    )
    seconds: float | None = option(None, "What --method auto may take; otherwise 60.")
    seed: int = option(0, "Of what is left to chance; the same gives the same parts.", bounds=(0, math.inf))
    slack: float = option(0.0, "Work that a part may have beyond its share: 0.05 are 5%.")
    shares: tuple[float, ...] | None = _numbers(
        "--shares", "How much of the work each part gets: 2,1,1; otherwise the same.", "X,Y,..."
    )
    row_weights: str | None = option(
        None, "Work of each row: its columns, or numbers; otherwise 1.", metavar="edges|FILE.npy"
    )
    column_weights: Path | None = option(None, "Bytes of each column; otherwise 1.", metavar="FILE.npy")
    memory_limit: int | None = option(None, "No part may touch more, in weights of columns.", metavar="N")
    topology: str = option("mesh", "mesh: part i serves its columns to others; star: a master serves all.")
    bandwidth: tuple[float, ...] | None = _numbers(
        "--bandwidth", "Bytes/s of every part, or of each; says the seconds of a round.", "X[,Y,...]"
    )
    speed: tuple[float, ...] | None = _numbers(
        "--speed", "Work/s of every part, or of each; with --bandwidth.", "X[,Y,...]"
    )
    master_bandwidth: float | None = option(None, "Bytes/s of the master of a star; with --bandwidth.", metavar="X")
    kind: str = option(
        "bipartite",
        "What rows are: bipartite, the first of an edge's two numbers; of a general graph, such as most of "
        "SNAP's, vertices, each with its neighbours, edges, each with both ends, or cliques.",
        flags=("--as",),
        metavar="ROWS",
    )
    earlier: Path | None = option(
        None,
        "An earlier placement of GRAPH, which may have grown. Rows stay where they are; on another -k few of them "
        "move: of fewer parts the last are gone, of more they are new.",
        flags=("--from",),
        metavar="DIR",
    )
    lost: str | None = option(
        None, "With --from: parts that are gone instead of the last; those after move up.", metavar="N,N"
    )
    move_cost: float | None = option(
        None, "With --from: a row moves if that saves more than so many times a mean row's columns."
    )
    format_name: str | None = option(
        None,
        "libsvm, matrix-market, edges, hmetis, npz or csr-folder; otherwise what the name says.",
        flags=("--format",),
        metavar="FORMAT",
    )
    store: Path | None = option(
        None,
        "First write GRAPH to a new folder, and place it from there: parsa then keeps only a few blocks of it "
        "in memory. libsvm is never read into memory for this.",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.seconds is not None and self.method != "auto":
            raise UsageError(
                f"got --seconds with --method {self.method}, which takes what it takes; expected it with auto."
            )
        if self.earlier is not None and (self.method != "auto" or self.seconds is not None):
            raise UsageError("got --from with --method or --seconds; expected it alone: it is a way to place.")
        if self.earlier is None and (self.move_cost is not None or self.lost is not None):
            raise UsageError("got --move-cost or --lost without --from; expected an earlier placement to move from.")
        if self.store is not None and self.kind != "bipartite":
            raise UsageError(
                f"got --store with --as {self.kind}; expected it with rows and columns as they are in the file."
            )

    @property
    def rates(self) -> Rates | None:
        """What is said of the parts' machines, or None. Raises UsageError where one thing lacks another."""
        from gridml.placement.base import STAR, Rates

        if self.bandwidth is None:
            for name, value in (("--speed", self.speed), ("--master-bandwidth", self.master_bandwidth)):
                if value is not None:
                    raise UsageError(f"got {name} alone: seconds are predicted from it and --bandwidth. Give both.")
            return None
        if self.master_bandwidth is not None and self.topology != STAR:
            raise UsageError(
                f"got --master-bandwidth in a {self.topology}, which has no master; expected it with a star."
            )
        return Rates(self.bandwidth, self.speed, self.master_bandwidth)

    def method_options(self) -> Options:
        """Return the options of the method."""
        from gridml.placement.auto import AutoOptions
        from gridml.placement.base import Options, options_of
        from gridml.placement.repartition import RepartitionOptions

        options = Options(
            self.seed, self.slack, self.objective, self.shares, self.memory_limit, self.topology, self.rates
        )
        if self.earlier is not None:
            return replace(options_of(RepartitionOptions, options), cost=self.move_cost)
        return options if self.seconds is None else replace(options_of(AutoOptions, options), seconds=self.seconds)


@takes_options(PlaceOptions)
def place(
    options: PlaceOptions,
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
    from gridml.placement.auto import find
    from gridml.placement.files import registry as files
    from gridml.placement.files.registry import read_weights
    from gridml.placement.folder import Names, before, check_free, save, without
    from gridml.placement.quality import measure
    from gridml.placement.repartition import Moved, Repartition
    from master.views.console import json_text
    from master.views.render_plan import print_quality, progress_bars

    method, method_options = find(options.method), options.method_options()
    works = None if options.row_weights in (None, EDGES) else read_weights(Path(str(options.row_weights)))
    sizes = None if options.column_weights is None else read_weights(options.column_weights)
    check_free(options.out)
    format_name, was = options.format_name, None
    try:
        with progress_bars(quiet=as_json) as told:
            if options.store is not None:
                files.store(graph, options.store, format_name, lambda read, size: told("storing", read, size))
                graph, format_name = options.store, None
            given = files.read_numbered(
                graph, format_name, lambda read, size: told("reading", read, size), kind=options.kind
            )
            weighted = given.graph.weighted(given.graph.degrees if options.row_weights == EDGES else works, sizes)
            if options.earlier is not None:
                was = before(options.earlier, given)
                if options.lost is not None:
                    was = without(was, options.lost, options.parts)
                method = Repartition(was)
            told("placing", 0, 0)
            placement, quality = measure(method, weighted, options.parts, method_options)
            facts = quality.to_json() | (asdict(Moved.between(was, placement)) if was is not None else {})
    except MemoryError as error:
        raise UsageError(
            f"{graph} does not fit into memory: {error}. Expected a smaller graph, or more memory."
        ) from error
    made = given.graph if options.kind in ("edges", "cliques") else None
    save(options.out, placement, json_text(facts, indent=2), Names(given.rows, given.columns, made))
    if plot is not None:
        from master.views.plot import plot_quality

        plot_quality(quality, plot)
    answer(facts, partial(print_quality, quality), as_json=as_json)
