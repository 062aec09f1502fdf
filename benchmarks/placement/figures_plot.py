"""Plots of the repeated figures: a line for each graph, or for each method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.placement.points import Panel, Point
from master.views.plot import new_figure, save

ACROSS = 3
DPI, COLOURS = 72, 24
LABELS = {
    "T": "improvement of the largest traffic, %",
    "s": "CPU seconds",
    "traffic": "columns that travel, for each edge",
    "training s, 1 Gbit/s": "predicted seconds of a training, 1 Gbit/s",
}
MARKS = "osD^vPX"


def draw(panels: Sequence[Panel], points: Sequence[Point], file: Path) -> None:
    """Draw the panels into `file`, a .png with few colours, which makes it a quarter as large."""
    from PIL import Image

    down = -(-len(panels) // ACROSS)
    figure = new_figure((4.2 * ACROSS, 3.3 * down))
    places = figure.subplots(down, ACROSS, squeeze=False).ravel()
    for axes, panel in zip(places, panels, strict=False):
        chosen = [point for point in points if point.figure == panel.figure and panel.graph in (None, point.graph)]
        if chosen:
            _panel(axes, panel, chosen)
    for axes in places[len(panels) :]:
        axes.axis("off")
    # Colours are the same in all panels, so one legend suffices, in a free place if there is one.
    free = len(panels) < len(places)
    places[len(panels) if free else 0].legend(
        *places[0].get_legend_handles_labels(), loc="center" if free else "best", fontsize=9 if free else 7
    )
    figure.set_dpi(DPI)
    save(figure, file)
    with Image.open(file) as image:
        image.convert("RGB").quantize(COLOURS).save(file, optimize=True)


def _panel(axes: Any, panel: Panel, points: Sequence[Point]) -> None:
    if panel.of == "cost":
        _costs(axes, panel, points)
    elif panel.of == "share":
        for number, graph in enumerate(dict.fromkeys(point.graph for point in points)):
            for method, style in (("random", ":"), ("parsa", "-")):
                chosen = [point for point in points if (point.graph, point.method) == (graph, method)]
                _line(axes, panel, chosen, number, style, f"{graph}" if style == "-" else None)
        axes.plot([], [], ":", color="black", label="at random")
    else:
        for number, name in enumerate(dict.fromkeys(getattr(point, panel.of) for point in points)):
            _line(axes, panel, [point for point in points if getattr(point, panel.of) == name], number, "-", name)
    if panel.logarithmic and panel.of != "cost":
        axes.set_xscale("log", base=2)
        ticks = sorted({point.x for point in points})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.minorticks_off()
    if panel.value == "s":
        axes.set_yscale("log")
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.along, fontsize=9)
    axes.set_ylabel(LABELS[panel.value], fontsize=9)
    axes.tick_params(labelsize=8)


def _line(axes: Any, panel: Panel, points: Sequence[Point], number: int, style: str, label: str | None) -> None:
    values = [(point.x, point.values[panel.value]) for point in points]
    axes.plot(*zip(*values, strict=True), style, marker=MARKS[number], markersize=4, color=f"C{number}", label=label)


def _costs(axes: Any, panel: Panel, points: Sequence[Point]) -> None:
    """Draw a mark for each method and graph: the cost of the placement, and of the training."""
    graphs = list(dict.fromkeys(point.graph for point in points))
    methods = [name for name in dict.fromkeys(point.method for point in points) if name != "random"]
    for point in points:
        colour = f"C{methods.index(point.method)}" if point.method in methods else "tab:grey"
        mark = MARKS[graphs.index(point.graph)]
        axes.plot(point.values["s"], point.values[panel.value], mark, color=colour, markersize=5)
    axes.plot([], [], "s", color="tab:grey", label="random")
    for number, name in enumerate(graphs):
        axes.plot([], [], MARKS[number], color="white", markeredgecolor="black", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(axes.get_ylim()[0] / 6)  # room for the legend
    axes.legend(fontsize=7, ncols=2, loc="lower left")
