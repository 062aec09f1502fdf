"""Draw what each part of a placement costs, against one at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gridml.placement.base import COLUMN_WEIGHTS
from gridml.placement.quality import Quality
from master.views.plot import new_figure, save


def plot_quality(quality: Quality, file: Path) -> None:
    """Draw the columns that each part touches, and those that travel to and from it, into `file`, whose ending says the
    format (.png, .pdf, .svg).

    Raises UsageError when matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure((11, 5))
    figure.suptitle(f"{quality.rows:,} rows and {quality.columns:,} columns on {quality.parts:,} parts")
    both = ((quality.at_random, "random", "tab:grey", -0.2), (quality.placed, quality.method, "tab:blue", 0.2))
    columns = "weight of columns" if COLUMN_WEIGHTS in quality.weighted else "columns"
    titles = (f"{columns} that a part touches, |N(U)|", f"{columns} that travel to and from a part in a round")
    for axes, title, name in zip(figure.subplots(1, 2), titles, ("touched", "travelling"), strict=True):
        for traffic, label, colour, shift in both:
            values = np.sort(getattr(traffic, name))[::-1]
            axes.bar(np.arange(quality.parts) + shift, values, 0.4, color=colour, label=label)
        axes.set_ylim(0, 1.2 * max(axes.get_ylim()[1], 1))  # room for the legend
        axes.set_title(title)
        axes.set_xlabel("parts, the largest first")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    save(figure, file)
