"""Logger for Weights & Biases: online if WANDB_MODE or WANDB_API_KEY is set accordingly, otherwise offline in `wandb/`
of the run directory, for `wandb sync`.

Each master writes its own part under the same run id. The steps that exist are read back from the parts' files: W&B's
service writes them with a delay, so a kill may lose points, which are then sent again.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, final

from master.telemetry.loggers.base import CountingLogger, LoggerPlugin, Point, named

FOLDER, STEP = "wandb", "vertices"
_FILE_HEADER, _BLOCK, _RECORD = 7, 32768, struct.Struct("<IHB")  # of LevelDB's log: checksum, length, part
_WHOLE, _FIRST, _LAST = 1, 2, 4  # kinds of part of a record; 3 is a middle part


@final
class WeightsAndBiases(CountingLogger):
    """Logs `train/NAME` and `evaluate/NAME` over the step metric `vertices`.

    W&B's own step counts points: it must increase with every call, and evaluations arrive late.
    """

    def __init__(self, root: Path) -> None:
        import wandb

        (root / FOLDER).mkdir(exist_ok=True)
        super().__init__()
        self._points = 0
        for file in (root / FOLDER).glob("*run-*/run-*.wandb"):
            for history in read_history(file):
                self._take(history)
        made_ns = (root / "README.txt").stat().st_mtime_ns  # creation time of the run
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

    def _take(self, history: Mapping[str, str]) -> None:
        """Count a point that exists."""
        if STEP in history:
            self._points = max(self._points, int(history["_step"]))
            for kind in {name.partition("/")[0] for name in history if "/" in name}:
                self.count(kind, int(history[STEP]))

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._points += 1
            self._run.log({**named(point), STEP: point.step, "epoch": point.epoch}, step=self._points)

    def close(self) -> None:
        self._run.finish()


def read_history(file: Path) -> Iterator[dict[str, str]]:
    """Yield the points in a part's file, as JSON by name, up to the first incomplete record."""
    records: Any = import_module("wandb.proto.wandb_internal_pb2")  # as Any: its names exist at run time only
    content, at, record = file.read_bytes(), _FILE_HEADER, b""
    while at + _RECORD.size <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _RECORD.size:
            at += left
            continue
        _, length, part = _RECORD.unpack_from(content, at)
        at += _RECORD.size + length
        if not part or at > len(content):
            return
        record = (b"" if part in (_WHOLE, _FIRST) else record) + content[at - length : at]
        if part in (_WHOLE, _LAST):
            items = records.Record.FromString(record).history.item
            yield {item.key or "/".join(item.nested_key): item.value_json for item in items}


def plugin() -> LoggerPlugin:
    return LoggerPlugin("wandb", WeightsAndBiases, ("wandb",), "pip install wandb")
