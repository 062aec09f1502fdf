"""The baseline of an example: its f, model, optimiser and schedule in a plain loop, without engine, chunks or pushes.

Prints one line of JSON: the seconds of training, vertices per second, and the result of the example's evaluate. It
uses one thread, like workers. It is for examples whose only replicated vertex holds a module.

    python -m benchmarks.example_loop examples/language_model.py [SEED]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gridml.model.loading import load
from gridml.model.program import Program
from gridml.model.schedule import Progress, TorchSchedule
from gridml.model.update import Update


def plain_step(optimiser: torch.optim.Optimizer, model: torch.nn.Module, loss: Any, clip_norm: float | None) -> None:
    """Take one step of a usual PyTorch loop."""
    optimiser.zero_grad()
    loss.backward()
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], clip_norm)
    optimiser.step()


def trained(program: Program, seed: int) -> tuple[dict[str, Any], float, int]:
    """Return the final metrics, the seconds of training and the number of trained vertices."""
    graph = program.graph()
    table = graph.tables[program.driving(graph)]
    f = program.shape
    assert isinstance(f, Update)
    parameter = f.parameters[0]
    ((name, declared),) = parameter.type.modules.items()
    assert declared.optimiser is not None
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = declared.factory()
    optimiser = declared.optimiser(model.parameters())
    rates = [group["lr"] for group in optimiser.param_groups]

    def step(loss: Any, clip_norm: float | None = None) -> None:
        plain_step(optimiser, model, loss, clip_norm)

    network = SimpleNamespace(step=step, optimiser=optimiser, **{name: model})
    columns = {field: torch.from_numpy(np.array(values)) for field, values in table.columns.items()}
    rng, batch, done = np.random.default_rng(seed), f.batch or 1, 0
    counts, total = f.steps(table.count), table.count * program.epochs
    schedule, steps = program.schedule, counts.per_epoch * program.epochs
    torchs = schedule.made(optimiser, steps) if isinstance(schedule, TorchSchedule) else None
    began = time.perf_counter()
    for epoch in range(program.epochs):
        for rows in torch.split(torch.from_numpy(rng.permutation(table.count)), batch):
            at = Progress(epoch, -1, done / total, counts.at(done, program.epochs), steps)
            for group, rate in zip(optimiser.param_groups, rates, strict=True) if torchs is None else ():
                group["lr"] = rate * program.factor(at)
            f.call(at, SimpleNamespace(**{f: v[rows] for f, v in columns.items()}), network)
            if torchs is not None:
                torchs.step()
            done += len(rows)
    seconds = time.perf_counter() - began
    model.eval()
    assert program.evaluate is not None
    return program.evaluate(SimpleNamespace(**{name: model})), seconds, done


def main() -> None:
    program = load(Path(sys.argv[1]))
    metrics, seconds, vertices = trained(program, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    shown = {name: value for name, value in metrics.items() if isinstance(value, float)}
    print(json.dumps({"seconds": round(seconds, 1), "rate": round(vertices / seconds, 1), **shown}))


if __name__ == "__main__":
    main()
