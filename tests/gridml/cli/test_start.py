"""The commands that start a run have the common options and those that their back end declares."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import typer

from chunk_model.parse import parse
from gridml.api.run_calls import options_of
from gridml.cli import main
from gridml.cli.start import start_command
from gridml.errors import UsageError
from gridml.protocol.messages import NO_PUSH
from master.backends.registry import BACKENDS
from master.backends.simulated_plugin import simulate_options
from master.ports.plugin import BackendPlugin, Command
from master.state.jobs import Backend, BackendFacts, BackendOptions
from master.state.options import FIRST, PANELS, in_panels, panel_of
from master.store.rundir import RunDirectory
from master.store.settings import Settings

PROGRAM = Path(__file__).parents[2] / "programs" / "counts.py"


@dataclass(frozen=True)
class LabOptions(BackendOptions):
    seats: Annotated[int, typer.Option("--places", help="Seats of the lab.")] = 2
    files: Annotated[tuple[Path, ...], typer.Option("--file", help="Given again for more.")] = ()
    inner: int = 7  # no option of the command

    @property
    def facts(self) -> BackendFacts:
        return BackendFacts(carries_files=True, carriers=("chirp",))


class Made(Exception):
    """Raised in place of starting the back end, with its settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings


class LabPlugin(BackendPlugin):
    name = "lab"
    options = LabOptions
    command = Command("lab", "Train in the lab.", "gridml lab mnist.py", workers=3, workers_help="Workers at once.")

    def make(self, settings: Settings, directory: RunDirectory) -> Backend:
        raise NotImplementedError

    def check(self, settings: Settings) -> None:
        raise Made(settings)


def made(*arguments: str) -> Settings:
    """Return the settings of a command line."""
    app = typer.Typer()
    app.command()(start_command(LabPlugin()))
    with pytest.raises(Made) as caught:
        app([str(PROGRAM), *arguments], standalone_mode=False)
    return caught.value.settings


def test_defaults_are_those_of_the_settings() -> None:
    assert made() == Settings(PROGRAM, backend="lab", workers=3, options=LabOptions())


def test_every_option_reaches_the_settings() -> None:
    common = ("--workers", "5", "--epochs", "2", "--seed", "4", "--chunk", "9", "--push-every", "8", "--silence", "7")
    common = (*common, "--steps-each", "0", "--chunk-bytes", "1.5MB", "--placement", "parsa")
    settings = made(*common, "--carrier", "sftp", "--address", "host:22", "--places", "1", "--file", "a", "--file", "b")
    options = LabOptions(seats=1, files=(Path("a"), Path("b")))
    assert settings == Settings(
        PROGRAM,
        backend="lab",
        workers=5,
        epochs=2,
        seed=4,
        chunk=9,
        chunk_bytes=1_500_000,
        placement="parsa",
        push_every=8,
        steps_each=0,
        silent_s=7.0,
        carrier="sftp",
        address="host:22",
        options=options,
    )


def test_what_is_expected_of_lives_is_kept_in_a_word(tmp_path: Path) -> None:
    assert made("--lifetime", "normal(45m,10m)").expected_lifetime == "normal(2700.0s,600.0s)"
    trace, rng = tmp_path / "machines.csv", np.random.default_rng(0)
    ends = np.cumsum(rng.exponential(600e3, 40)).astype(int)
    begins = [0, *ends[:-1]]
    lines = [f"{b},add,m{k}\n{e},remove,m{k}" for k, (b, e) in enumerate(zip(begins, ends, strict=True))]
    trace.write_text("\n".join(lines) + "\n")
    law = made("--trace", str(trace)).expected_lifetime
    assert law is not None and 300 < parse(law).mean() < 1200
    with pytest.raises(UsageError, match="--lifetime"):
        refused("--lifetime", "forever")


def test_a_chunk_is_a_number_or_a_rule() -> None:
    settings = made("--chunk", "paper")
    assert (settings.chunk, settings.chunk_rule) == (None, "paper")
    settings = made("--chunk", "gaussian", "--lifetime", "normal(45m,10m)")
    assert (settings.chunk_rule, settings.expected_lifetime) == ("gaussian", "normal(2700.0s,600.0s)")
    for wrong in ("0", "many", "1.5"):
        with pytest.raises(UsageError, match=f"--chunk is .*{wrong}.*expected"):
            refused("--chunk", wrong)
    with pytest.raises(UsageError, match=r"--chunk gaussian needs a normal distribution, got exponential.*normal\(45m"):
        refused("--chunk", "gaussian", "--lifetime", "exponential(1h)")


def test_no_push_is_all_or_nothing() -> None:
    assert made("--no-push").push_every == NO_PUSH
    with pytest.raises(UsageError, match="both --no-push and --push-every"):
        refused("--no-push", "--push-every", "100")


def refused(*arguments: str) -> None:
    app = typer.Typer()
    app.command()(start_command(LabPlugin()))
    app([str(PROGRAM), *arguments], standalone_mode=False)


@pytest.mark.parametrize("text", ["0", "-1", "4.9", "nan", "inf"])
def test_a_silence_in_which_no_worker_could_start_is_refused(text: str) -> None:
    app = typer.Typer()
    app.command()(start_command(LabPlugin()))
    with pytest.raises(UsageError, match=f"--silence is {text}; expected at"):
        app([str(PROGRAM), "--silence", text], standalone_mode=False)


def test_an_address_has_its_older_name_too() -> None:
    assert made("--carrier", "sftp", "--sftp", "host").address == "host"


def test_what_is_not_declared_is_no_option() -> None:
    assert "inner" not in inspect.signature(start_command(LabPlugin())).parameters


@pytest.mark.parametrize("name", ["local", "condor", "ec2", "simulated"])
def test_help_shows_the_eight_options_that_most_need_first(name: str) -> None:
    plugin = BACKENDS.find(name)
    options = simulate_options() if plugin.command is None else options_of(plugin)
    panels = [panel_of(each) for each in in_panels(options)]
    assert panels.count(FIRST) == 8 and panels[:8] == [FIRST] * 8
    assert {*panels} <= {*PANELS} and [each for each in PANELS if each in panels] == [*dict.fromkeys(panels)]


def test_every_back_end_says_how_it_is_begun() -> None:
    verbs = {name: plugin.command.verb for name, plugin in BACKENDS.all().items() if plugin.command is not None}
    assert verbs == {"local": "run", "condor": "submit", "ec2": "launch"}


def called(*arguments: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main.main([*arguments])
    return ended.value.code


def test_a_dry_run_prints_what_would_be_submitted_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = (
        "--dry-run",
        "--carrier",
        "sftp",
        "--sftp",
        "192.0.2.1",
        "--chunks-per-job",
        "3",
        "--attribute",
        "Wanted=True",
    )
    code = called("submit", str(PROGRAM), *chosen, monkeypatch=monkeypatch, folder=tmp_path)
    said = capsys.readouterr().out
    assert not code and list(tmp_path.iterdir()) == []
    assert "universe = local" in said and "universe = vanilla" in said and "+Wanted = True" in said
    assert "--carrier sftp" in said and "--chunks 3" in said
    assert "sent with every job: gridml.pyz (" in said and "sent with every job: sftp/$(worker) (the job's own" in said


def test_a_simulated_run_cannot_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ("--vertices", "1000", "--workers", "2", "--run-dir", "run", "--json")
    assert not called("simulate", *chosen, monkeypatch=monkeypatch, folder=tmp_path)
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["backend"] == "simulated"
    code = called("resume", "run", monkeypatch=monkeypatch, folder=tmp_path)
    assert code == 2 and "gridml simulate" in capsys.readouterr().err
