"""Measurements of workers, decisions about their number, and loggers of a run."""
