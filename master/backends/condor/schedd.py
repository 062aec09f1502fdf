"""How HTCondor is reached: its Python bindings, the errors they raise in words for a person, the job that we are."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gridml.errors import RunError
from master.backends.condor.advice import about_refusal

RUN = "GridmlRun"  # attribute of every worker's job: the run directory


def bindings() -> Any:
    """Return HTCondor's Python bindings. Raises RunError where they are missing or find no configuration."""
    try:
        return importlib.import_module("htcondor2")
    except ImportError as error:
        raise RunError(
            f"HTCondor's Python bindings cannot be imported ({error}). Install them with: pip install 'gridml[condor]'"
        ) from error


@contextlib.contextmanager
def explained(condor: Any) -> Iterator[None]:
    """Say what a person can do where HTCondor refuses, or cannot be reached."""
    try:
        yield
    except (condor.HTCondorException, RuntimeError, OSError) as error:
        if (why := about_refusal(str(error))) is not None:
            raise RunError(f"the HTCondor queue can be reached, and refused: {why}. It said: {error}.") from error
        config = os.environ.get("CONDOR_CONFIG")
        where = f"CONDOR_CONFIG is {config}" if config else "CONDOR_CONFIG is not set"
        raise RunError(
            f"no HTCondor queue can be reached: {error}. {where}. Run this on an access point, or raise a pool of your "
            f"own (make pool), and see whether condor_q answers."
        ) from error


def check_reachable() -> None:
    """Raise RunError, saying what to do, when no queue can be reached."""
    condor = bindings()
    with explained(condor):
        condor.Schedd().query("false", ["ClusterId"], limit=1)


def on_loopback() -> bool:
    """Return whether the pool is one of this machine alone; not where there is no configuration to tell."""
    with contextlib.suppress(RunError, RuntimeError, OSError, KeyError):
        return str(bindings().param["NETWORK_INTERFACE"]).startswith(("127.", "::1"))
    return False


def job_ad() -> str | None:
    """Return the file with the ad of the job that this process is, None when it is none."""
    return os.environ.get("_CONDOR_JOB_AD")


def own_cluster() -> int | None:
    """Return the cluster of the job that this process is, None when it is none."""
    ad = job_ad()
    with contextlib.suppress(OSError, ValueError):
        for line in Path(ad).read_text().splitlines() if ad else []:
            name, _, value = line.partition(" = ")
            if name == "ClusterId":
                return int(value)
    return None
