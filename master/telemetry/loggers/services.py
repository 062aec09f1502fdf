"""Loggers for TensorBoard, MLflow and Weights & Biases, whose packages are imported when a run uses them.

TensorBoard: event files in `tensorboard/` of the run directory (`tensorboard --logdir RUN`). Each master writes a file
of its own. A point is one record with a checksum, so it is complete or absent. The steps that exist are read back from
the files.

MLflow: logs to the server in MLFLOW_TRACKING_URI, or else to `mlruns/` in the run directory. A later master finds the
MLflow run by a tag with the run directory's path and creation time, and reads its steps back from MLflow.

Weights & Biases: online if WANDB_MODE or WANDB_API_KEY is set accordingly, otherwise offline in `wandb/` of the run
directory, for `wandb sync`. Each master writes its own part under the same run id. The steps that exist are read back
from the parts' files: W&B's service writes them with a delay, so a kill may lose points, which are then sent again.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, final

from master.telemetry.loggers.base import CountingLogger, LoggerPlugin, Point, named

FOLDER = "tensorboard"
_FILES = "events.out.tfevents.*"


@final
class TensorBoard(CountingLogger):
    """Writes scalars `train/NAME` and `evaluate/NAME`."""

    def __init__(self, root: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        super().__init__()
        folder = root / FOLDER
        folder.mkdir(exist_ok=True)
        for file in sorted(folder.glob(_FILES)):
            self._read(file)
        self._writer = EventFileWriter(str(folder))

    def _read(self, file: Path) -> None:
        """Count the points in an event file; its reader ignores a record that a kill cut short."""
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event

        for event in map(Event.FromString, RawEventFileLoader(str(file)).Load()):
            for value in event.summary.value:
                self.count(value.tag.partition("/")[0], event.step)

    def write(self, points: Sequence[Point]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in named(point).items()]
            self._writer.add_event(Event(wall_time=point.at_s, step=point.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def tensorboard_plugin() -> LoggerPlugin:
    return LoggerPlugin("tensorboard", TensorBoard, ("tensorboard",), "pip install tensorboard")


EXPERIMENT, TAG = "gridml", "gridml.run"
MAX_METRICS = 1000  # MLflow's limit for one call
_SERVER, _ALLOW_FILES = "MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"


@final
class Mlflow(CountingLogger):
    """Logs metrics `train/NAME` and `evaluate/NAME`."""

    def __init__(self, root: Path) -> None:
        from mlflow.tracking import MlflowClient

        super().__init__()
        with _files_allowed():
            self._client: Any = MlflowClient(os.environ.get(_SERVER) or (root.resolve() / "mlruns").as_uri())
            self._run = self._find(root)
        for name in self._client.get_run(self._run).data.metrics:
            for metric in self._client.get_metric_history(self._run, name):
                self.count(name.partition("/")[0], metric.step)

    def _find(self, root: Path) -> str:
        """Return the id of the MLflow run, which is created if missing."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        identity = (
            f"{root.resolve()} {(root / 'README.txt').stat().st_mtime_ns}"  # written once, when the run is created
        )
        runs = self._client.search_runs([number], filter_string=f"tags.`{TAG}` = '{identity}'")
        if not runs:
            runs = [self._client.create_run(number, run_name=root.name, tags={TAG: identity})]
        return str(runs[0].info.run_id)

    def write(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(point.at_s * 1000), point.step)
            for point in points
            for name, value in named(point).items()
        ]
        for at in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run, metrics=metrics[at : at + MAX_METRICS])

    def close(self) -> None:
        self._client.set_terminated(self._run)


@contextmanager
def _files_allowed() -> Iterator[None]:
    """Allow MLflow's file store, which it otherwise refuses in favour of a database; a database per run directory is
    not worth it."""
    before = os.environ.get(_ALLOW_FILES)
    os.environ.setdefault(_ALLOW_FILES, "true")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ALLOW_FILES]


def mlflow_plugin() -> LoggerPlugin:
    return LoggerPlugin("mlflow", Mlflow, ("mlflow",), "pip install mlflow-skinny")


WANDB_FOLDER, STEP = "wandb", "vertices"
_FILE_HEADER, _BLOCK, _RECORD = 7, 32768, struct.Struct("<IHB")  # of LevelDB's log: checksum, length, part
_WHOLE, _FIRST, _LAST = 1, 2, 4  # kinds of part of a record; 3 is a middle part


@final
class WeightsAndBiases(CountingLogger):
    """Logs `train/NAME` and `evaluate/NAME` over the step metric `vertices`.

    W&B's own step counts points: it must increase with every call, and evaluations arrive late.
    """

    def __init__(self, root: Path) -> None:
        import wandb

        (root / WANDB_FOLDER).mkdir(exist_ok=True)
        super().__init__()
        self._points = 0
        for file in (root / WANDB_FOLDER).glob("*run-*/run-*.wandb"):
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


def wandb_plugin() -> LoggerPlugin:
    return LoggerPlugin("wandb", WeightsAndBiases, ("wandb",), "pip install wandb")
