"""How workers are named: each attempt of a job is another worker. Job `w7` is `w7` first, then `w7.1`, `w7.2`."""

from __future__ import annotations


def worker_name(job: str, starts: int) -> str:
    """The worker that a job is after `starts` earlier starts."""
    return f"{job}.{starts}" if starts else job


def job_of(worker: str) -> str:
    """The job that a worker is an attempt of."""
    return worker.partition(".")[0]


def is_attempt(worker: str, job: str) -> bool:
    """Whether a name is that of an attempt of a job, and nothing else."""
    return worker == worker_name(job, attempt_of(worker)) and job.isalnum()


def attempt_of(worker: str) -> int:
    """Which attempt of its job a worker is: how often that was started before."""
    number = worker.partition(".")[2]
    return int(number) if number.isdecimal() else 0
