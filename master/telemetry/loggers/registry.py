"""The loggers by name: those that every run has, and those that are asked for."""

from __future__ import annotations

from gridml.registry import Registry
from master.telemetry.loggers.base import LoggerPlugin

ALWAYS = ("csv", "json")
LOGGERS: Registry[LoggerPlugin] = Registry(
    "logger",
    "gridml.loggers",
    {
        "csv": "master.telemetry.loggers.csv_file:plugin",
        "json": "master.telemetry.loggers.json_lines:plugin",
        "tensorboard": "master.telemetry.loggers.tensorboard_events:plugin",
        "mlflow": "master.telemetry.loggers.mlflow_run:plugin",
        "wandb": "master.telemetry.loggers.wandb_run:plugin",
    },
)
