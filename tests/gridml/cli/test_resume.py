"""`gridml resume` with options: changeable settings change, and fixed ones are rejected with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from master.backends.local_plugin import LocalOptions
from master.backends.registry import read_settings
from master.launch import create
from master.ports.environment import Environment
from master.scaling import REQUESTED
from master.store.reader import opened, read_facts
from master.store.rundir import RunDirectory
from master.store.settings import Settings

COMMAND = "resume"
PROGRAM = Path(__file__).parents[2] / "programs" / "tallies.py"
Gridml = Callable[..., tuple[int, str, str]]


@pytest.fixture
def submitted(gridml: Gridml) -> Settings:
    """A run without a master, in the working directory."""

    def nowhere(settings: Settings, directory: RunDirectory) -> None:
        raise AssertionError("no master is wanted here")

    settings = Settings(PROGRAM, workers=1, chunk=200, options=LocalOptions())
    create(settings, Path("run"), Environment(nowhere, durable=False))  # type: ignore[arg-type]
    return settings


def as_written() -> Settings:
    with opened(Path("run")) as ledger:
        return read_settings(Path("run"), read_facts(ledger)["settings"])


@pytest.mark.real
def test_a_run_goes_on_with_other_numbers(gridml: Gridml, submitted: Settings) -> None:
    (Path("run") / REQUESTED).write_text("7\n")
    given = ("--workers", "3", "--silence", "60", "--lifetime", "exponential(1h)", "--logger", "csv")
    status, _, err = gridml("run", *given)
    assert status == 0, err
    written = as_written()
    assert (written.workers, written.silent_s, written.chunk, written.loggers) == (3, 60.0, 200, ("csv",))
    assert LocalOptions.among(written.options).lifetime == "exponential(1h)"
    with opened(Path("run")) as ledger:
        assert ledger.execute("SELECT count(*) FROM workers WHERE worker = 'w3'").fetchone() == (1,)
        assert ledger.execute("SELECT count(*) FROM workers WHERE worker = 'w4'").fetchone() == (0,)
        (text,) = ledger.execute("SELECT text FROM events WHERE topic = 'settings'").fetchone()
    assert text == (
        "workers 3 instead of 1; silent_s 60.0 instead of 120.0; loggers csv instead of none; lifetime exponential(1h)"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--seed", "3"], "--seed cannot change when a run is resumed: the order of the vertices"),
        (["--request-memory", "4GB"], "got --request-memory, which is not an option of this run's back end, local"),
        (["--silence", "1"], "--silence is 1; expected at least 5 seconds"),
        (["--chunk", "half"], "--chunk is 'half'; expected a number of vertices, or goodput or paper or gaussian"),
        (["--epochs", "0"], "--epochs is 0; expected at least 1"),
        (["--workers", "0"], "--workers is 0; expected at least 1"),
        (["--workers", "99999"], "each is a process of this machine"),
        (["--send", "x.txt"], "got --send without --with-changes"),
        (["--lifetime", "soon"], "soon"),
        (["--logger", "tensorbord"], "there is no logger 'tensorbord'; expected one of csv, json, tensorboard"),
    ],
)
def test_what_must_not_change_or_makes_no_sense_is_refused(
    gridml: Gridml, submitted: Settings, given: list[str], said: str
) -> None:
    status, _, err = gridml("run", *given)
    assert status == 2 and said in " ".join(err.split()), err
    assert as_written() == submitted
