"""Draw goodput against the size of a chunk: what the model says, what was chosen, what a replay of lives says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chunk_model.goodput import chunk_goodput
from master.planning.plan import Plan, all_or_nothing, replay_sizes
from master.views.plot import new_figure, save
from master.views.render_plan import rounded


def plot_plan(plan: Plan, file: Path) -> None:
    """Draw a plan into `file`, whose ending says the format (.png, .pdf, .svg).

    Raises UsageError when matplotlib is not installed, or the file cannot be written.
    """
    choice, paper = plan.choice, plan.paper
    figure = new_figure((9, 6))
    axes = figure.subplots()
    sizes = np.array([point.chunk for point in choice.curve])
    label = "goodput"
    if choice.push_every is not None:
        label = f"with a push every {choice.push_every:,} vertices"
        wide = np.unique(np.geomspace(sizes[0], max(sizes[-1], 2 * paper.chunk), 100).round())
        bare = chunk_goodput(choice.lifetime, all_or_nothing(plan.costs), wide, many=plan.work.many)
        axes.plot(wide, bare, "--", color="tab:grey", label="without pushes: all or nothing")
    axes.plot(sizes, [point.goodput for point in choice.curve], color="tab:blue", label=label)
    points = replay_sizes(plan)
    values = np.array([(point.goodput, point.low, point.high) for point in points])
    axes.errorbar(
        [point.chunk for point in points],
        values[:, 0],
        np.abs(values[:, 1:].T - values[:, 0]),
        fmt="o",
        color="tab:green",
        markersize=4,
        capsize=3,
        label=f"replayed, with lives {'drawn from the model' if plan.estimate.observations is None else 'as seen'}",
    )
    axes.plot(choice.chunk, choice.goodput, "o", color="tab:red", markersize=10, label=f"chosen: {choice.chunk:,}")
    label = f"the paper's choice, without pushes: {paper.chunk:,}"
    axes.plot(paper.chunk, paper.goodput, "X", color="black", markersize=9, label=label)
    axes.set_xscale("log")
    axes.set_ylim(0, None)
    axes.set_xlabel("vertices a chunk")
    axes.set_ylabel("goodput: share of the machines' time that is kept training")
    axes.set_title(f"lives: {rounded(choice.lifetime)}")
    axes.legend()
    save(figure, file)
