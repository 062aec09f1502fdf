"""Logger for MLflow: logs to the server in MLFLOW_TRACKING_URI, or else to `mlruns/` in the run directory.

A later master finds the MLflow run by a tag with the run directory's path and creation time, and reads its steps back
from MLflow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from master.telemetry.loggers.base import CountingLogger, LoggerPlugin, Point, named

EXPERIMENT, TAG = "gridml", "gridml.run"
MAX_METRICS = 1000  # MLflow's limit for one call
_SERVER, _FILES = "MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"


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
    before = os.environ.get(_FILES)
    os.environ.setdefault(_FILES, "true")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FILES]


def plugin() -> LoggerPlugin:
    return LoggerPlugin("mlflow", Mlflow, ("mlflow",), "pip install mlflow-skinny")
