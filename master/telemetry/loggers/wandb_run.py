"""A Weights & Biases run: online where WANDB_MODE or WANDB_API_KEY says so, otherwise offline in `wandb/` of the run
directory, for `wandb sync`.

An offline run cannot say what it has, and each master begins a part of its own under one id. So what is given is
written down first, in wandb/gridml.json: a kill between the two loses a point, and repeats none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from gridml.protocol import bundle
from master.telemetry.loggers.base import Logger, LoggerPlugin, Point

FOLDER, NOTE, STEP = "wandb", "gridml.json", "vertices"


@final
class WeightsAndBiases(Logger):
    """Logs `train/NAME` and `evaluate/NAME` over `vertices`, the step: W&B's own step only counts points, since those
    of evaluations come late."""

    def __init__(self, root: Path) -> None:
        import wandb

        (root / FOLDER).mkdir(exist_ok=True)
        self._note = root / FOLDER / NOTE
        note: dict[str, Any] = json.loads(self._note.read_bytes()) if self._note.exists() else {}
        self._last: dict[str, int] = note.get("last", {})
        self._points = int(note.get("points", 0))
        made_ns = (root / "README.txt").stat().st_mtime_ns  # when the run was made
        usual = "online" if os.environ.get("WANDB_API_KEY") else "offline"
        quiet: Any = {"silent": True, "console": "off", "x_disable_stats": True}
        mode: Any = os.environ.get("WANDB_MODE") or usual
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "gridml"),
            id=hashlib.sha256(f"{root.resolve()} {made_ns}".encode()).hexdigest()[:16],
            name=root.name,
            dir=str(root),
            mode=mode,
            resume="allow",
            settings=wandb.Settings(disable_git=True, disable_code=True, **quiet),
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def last(self) -> Mapping[str, int]:
        return self._last

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._points += 1
            self._last[point.kind] = point.step
            note = json.dumps({"last": self._last, "points": self._points}).encode()
            bundle.write_atomic(self._note, note, durable=False)
            values = {f"{point.kind}/{name}": value for name, value in point.values.items()}
            self._run.log({**values, STEP: point.step, "epoch": point.epoch}, step=self._points)

    def close(self) -> None:
        self._run.finish()


def plugin() -> LoggerPlugin:
    return LoggerPlugin("wandb", WeightsAndBiases, ("wandb",), "pip install 'gridml[wandb]'")
