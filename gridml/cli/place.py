"""`gridml place`: partitions the rows and columns of a graph so that parts need little memory and traffic."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from gridml.cli.arguments import Json, print_result, takes_options
from gridml.errors import UsageError
from master.state.options import FIRST, FROM_1, Option, check_bounds, option

if TYPE_CHECKING:
    from gridml.placement.base import Options, Rates

EDGES = "edges"  # value of --row-weights: the work of a row is the number of its columns


def _numbers(name: str, help: str, metavar: str) -> tuple[float, ...] | None:
    """Return an option for comma-separated numbers. Reading any other value raises UsageError."""

    def read(text: str) -> tuple[float, ...]:
        try:
            return tuple(float(number) for number in text.split(","))
        except ValueError:
            raise UsageError(f"{name} is {text!r}; expected comma-separated numbers, such as 2,1,1.") from None

    return option(None, help, metavar=metavar, kind=str, read=read)


@dataclass(frozen=True)
class PlaceOptions:
    """Options of `gridml place`. Raises UsageError for options that exclude or require one another."""

    PANEL: ClassVar[str] = FIRST
    # Required options are `Annotated`, because `option` makes fields with a default.
    parts: Annotated[int, Option("Number of parts.", flags=("-k", "--parts"), metavar="N", bounds=FROM_1)]
    out: Annotated[
        Path,
        Option(
            "Output folder: u_part.npy and v_part.npy (the part of each row and column), quality.json, for an edge "
            "list u_ids.npy and v_ids.npy (original ids), and with --as edges or cliques graph.npz (the rows made).",
            metavar="DIR",
        ),
    ]
    method: str = option("auto", "Method: auto, parsa, refined, multilevel, tsh, mbp, or another of docs/placement.md.")
    objective: str = option(
        "memory",
        "Quantity to minimise: memory or traffic (of the largest part), total traffic, duan (largest work times "
        "largest traffic), or seconds (of a round; needs --bandwidth).",
    )
    # The default is None, not 60, because other methods must reject the option, and only if the user gave it.
    seconds: float | None = option(None, "Time limit of --method auto, in seconds. Default: 60.")
    seed: int = option(0, "Random seed; the same seed gives the same parts.", bounds=(0, math.inf))
    slack: float = option(0.0, "How far a part's work may exceed its share; 0.05 is 5%.")
    shares: tuple[float, ...] | None = _numbers(
        "--shares", "Relative work of each part, such as 2,1,1. Default: equal.", "X,Y,..."
    )
    row_weights: str | None = option(
        None, "Work of each row: its number of columns, or values from a file. Default: 1.", metavar="edges|FILE.npy"
    )
    column_weights: Path | None = option(None, "Bytes of each column. Default: 1.", metavar="FILE.npy")
    memory_limit: int | None = option(None, "Largest memory of a part, as a sum of column weights.", metavar="N")
    topology: str = option("mesh", "mesh: each part serves its own columns; star: a master serves all columns.")
    bandwidth: tuple[float, ...] | None = _numbers(
        "--bandwidth", "Bytes/s of all parts, or of each; predicts the seconds of a round.", "X[,Y,...]"
    )
    speed: tuple[float, ...] | None = _numbers(
        "--speed", "Work/s of all parts, or of each; needs --bandwidth.", "X[,Y,...]"
    )
    master_bandwidth: float | None = option(None, "Bytes/s of the master of a star; needs --bandwidth.", metavar="X")
    # `as` and `from` are Python keywords, so the fields of --as and --from are `kind` and `earlier`.
    kind: str = option(
        "bipartite",
        "Rows: bipartite (the first id of each edge), or for a general graph, such as most of SNAP's: vertices (each "
        "with its neighbours), edges (each with both ends), or cliques.",
        flags=("--as",),
        metavar="ROWS",
    )
    earlier: Path | None = option(
        None,
        "Earlier placement of GRAPH to start from; GRAPH may have grown since. Rows stay where they are. With "
        "another -k few rows move: the last parts are removed, or new ones are added.",
        flags=("--from",),
        metavar="DIR",
    )
    lost: str | None = option(
        None, "With --from: parts to remove instead of the last; later parts are renumbered.", metavar="N,N"
    )
    move_cost: float | None = option(
        None, "With --from: saving required to move a row, in multiples of a mean row's columns."
    )
    format_name: str | None = option(
        None,
        "Format of GRAPH: libsvm, matrix-market, edges, hmetis, npz or csr-folder. Default: by its suffix.",
        flags=("--format",),
        metavar="FORMAT",
    )
    store: Path | None = option(
        None,
        "First convert GRAPH to a new csr-folder and place it from there: parsa then keeps only a few blocks in "
        "memory. A libsvm file is converted without loading it into memory.",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.seconds is not None and self.method != "auto":
            raise UsageError(
                f"got --seconds with --method {self.method}; expected --method auto, which alone has a time limit."
            )
        if self.earlier is not None and (self.method != "auto" or self.seconds is not None):
            raise UsageError("got --from with --method or --seconds; expected it alone: --from is itself a method.")
        if self.earlier is None and (self.move_cost is not None or self.lost is not None):
            raise UsageError("got --move-cost or --lost without --from; expected an earlier placement to start from.")
        if self.store is not None and self.kind != "bipartite":
            raise UsageError(
                f"got --store with --as {self.kind}; expected --as bipartite: --store converts the file as it is."
            )

    @property
    def rates(self) -> Rates | None:
        """Speeds and bandwidths of the parts' machines, or None. Raises UsageError if an option lacks the options that
        it needs."""
        from gridml.placement.base import STAR, Rates

        if self.bandwidth is None:
            for name, value in (("--speed", self.speed), ("--master-bandwidth", self.master_bandwidth)):
                if value is not None:
                    raise UsageError(f"got {name} without --bandwidth; expected both to predict seconds.")
            return None
        if self.master_bandwidth is not None and self.topology != STAR:
            raise UsageError(
                f"got --master-bandwidth with --topology {self.topology}, which has no master; expected star."
            )
        return Rates(self.bandwidth, self.speed, self.master_bandwidth)

    def method_options(self) -> Options:
        """Return the options for the placement method."""
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
            help="Rows (data) and the columns they touch: libsvm (.svm), Matrix Market (.mtx), edge list (.edges, "
            ".tsv, .csv, .txt) or hMETIS (.hgr), each also as .gz, .bz2, .xz or from a pipe (--format); a scipy .npz, "
            "or a folder written by --store (.csr, csr-folder).",
            show_default=False,
        ),
    ],
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also plot columns and traffic per part to a .png, .pdf or .svg file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Partition data and parameters, and report the quality of the result.

    Each row of GRAPH touches columns. Rows that touch the same columns go to the same part, and each column goes where
    it is used, so that a part holds few columns and few are transferred. quality.json compares this with a random
    placement: M_max and T_max are the largest memory and traffic of a part, T_sum is the total traffic, in columns.
    With --as vertices, G_max and G_sum are ghosts, the neighbours that other parts have: of a part, and of all.

    Example: gridml place ratings.tsv.gz -k 16 --out placed --plot placed.png
    """
    from gridml.placement.auto import find
    from gridml.placement.bipartite import VERTICES
    from gridml.placement.files import registry as files
    from gridml.placement.files.registry import read_weights
    from gridml.placement.folder import Names, before, check_free, save, without
    from gridml.placement.quality import measure
    from gridml.placement.repartition import Moved, Repartition
    from master.views.console import json_text
    from master.views.render_plan import print_quality, progress_bars

    # Options, weights and the output folder are checked before the graph is read, which may take minutes.
    method, method_options = find(options.method), options.method_options()
    works = None if options.row_weights in (None, EDGES) else read_weights(Path(str(options.row_weights)))
    sizes = None if options.column_weights is None else read_weights(options.column_weights)
    check_free(options.out)
    format_name, earlier = options.format_name, None
    try:
        with progress_bars(quiet=as_json) as report:
            if options.store is not None:
                files.store(graph, options.store, format_name, lambda read, size: report("storing", read, size))
                graph, format_name = options.store, None
            given = files.read_numbered(
                graph, format_name, lambda read, size: report("reading", read, size), kind=options.kind
            )
            # With EDGES, the work of a row is its number of columns, which is known only once the graph is read.
            weighted = given.graph.weighted(given.graph.degrees if options.row_weights == EDGES else works, sizes)
            if options.earlier is not None:
                earlier = before(options.earlier, given)
                if options.lost is not None:
                    earlier = without(earlier, options.lost, options.parts)
                method = Repartition(earlier)
            report("placing", 0, 0)  # without a total: methods do not report their progress
            placement, quality = measure(
                method, weighted, options.parts, method_options, is_of_one_type=options.kind == VERTICES
            )
            facts = quality.to_json() | (asdict(Moved.between(earlier, placement)) if earlier is not None else {})
    except MemoryError as error:  # the graph is too large for this machine: not a bug, so no traceback
        raise UsageError(
            f"{graph} does not fit into memory: {error}. Expected a smaller graph, or more memory."
        ) from error
    # The file has no ids for rows made from edges or cliques, so the columns of these rows are saved instead.
    made = given.graph if options.kind in ("edges", "cliques") else None
    save(options.out, placement, json_text(facts, indent=2), Names(given.rows, given.columns, made))
    if plot is not None:
        from master.views.plot import plot_quality

        plot_quality(quality, plot)
    print_result(facts, partial(print_quality, quality), as_json=as_json)
