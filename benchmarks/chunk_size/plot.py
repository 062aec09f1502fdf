"""The plot of `benchmarks.chunk_size`: goodput over four decades of chunk size, with the choices.

The paper's Figure 4 is assumed to show TotalTime over the size. Goodput is N·t_x divided by that, so on logarithmic
axes it is the same curve upside down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chunk_model.lifetime import Floats
from master.views.plot import new_figure, save

SHOWN = ("figure 4", "exponential", "lognormal", "mixture", "bamboo p3-trace", "bamboo gcp-v100x1-east1c")
FLOOR = 1e-4  # lower end of the axis; points below are those where nothing finishes


@dataclass(frozen=True)
class Curve:
    """The goodput of one setting over the chunk size."""

    name: str
    size: Floats  #: in mean lives: 1 is the vertices that a mean life could train
    goodput: Floats  #: 0 to 1, of each size
    chosen: float  #: the chosen size, in mean lives
    chosen_goodput: float
    paper: float  #: the paper's deterministic size, in mean lives


def draw(curves: Sequence[Curve], file: Path) -> None:
    """Draw the curves of all or nothing with one chunk a life, with logarithmic axes."""
    figure = new_figure((10, 7))
    axes = figure.subplots()
    shown = [curve for curve in curves if curve.name in SHOWN]
    for number, curve in enumerate(shown):
        colour = f"C{number}"
        axes.plot(curve.size, curve.goodput.clip(FLOOR / 10), color=colour, label=curve.name)
        axes.plot(curve.chosen, curve.chosen_goodput, "o", color=colour, markersize=10, markeredgecolor="black")
        at_paper = float(curve.goodput[abs(curve.size / curve.paper - 1).argmin()])
        axes.plot(curve.paper, max(at_paper, FLOOR), "X", color=colour, markersize=10, markeredgecolor="black")
    best = max(curve.chosen_goodput for curve in shown)
    axes.axhspan(best / 100, best, color="tab:grey", alpha=0.12, label="two orders of magnitude (the paper's claim)")
    axes.plot([], [], "o", color="white", markeredgecolor="black", label="chosen")
    axes.plot([], [], "X", color="white", markeredgecolor="black", label="the paper's, n = T/(t_c + t_x)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, 1)
    axes.set_xlabel("vertices a chunk, relative to those that a mean life could train")
    axes.set_ylabel("goodput, simulated")
    axes.set_title("All or nothing, one chunk a life: goodput by chunk size")
    axes.legend(loc="lower left")
    save(figure, file)
