"""A run that a call drives: it is cancelled, interrupted and scaled, and resumes from its last credit."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gridml
from gridml.errors import CancelledError, RunError, UsageError, UserCodeError

PROGRAMS = Path(__file__).parents[2] / "programs"


@pytest.mark.real
def test_a_run_is_stopped_by_its_listener_and_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run"

    def cancel(event: gridml.Event) -> None:
        if event.topic == "running":
            gridml.Run(root).cancel()

    with pytest.raises(CancelledError, match="was cancelled"):
        gridml.run(PROGRAMS / "tally.py", workers=1, run_dir=root, on_event=cancel, display="none")
    run = gridml.Run(root)
    assert run.status == "cancelled"
    with pytest.raises(RunError, match=r"is cancelled: .* was cancelled"):
        run.wait()
    with pytest.raises(RunError, match="there is nothing to cancel"):
        run.cancel()

    def interrupt(event: gridml.Event) -> None:
        if event.topic == "running":
            run.scale(2)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as interrupted:
        gridml.resume(run, on_event=interrupt, display="none")
    assert interrupted.value.__notes__ == [
        f"{root} stands at its last credit. Resume with gridml.resume({str(root)!r})."
    ]
    ended: list[gridml.Run] = []
    others = threading.Thread(target=lambda: ended.append(gridml.resume(root, display="none")))
    others.start()  # no signals reach it there
    others.join(120)
    assert ended[0].wait(timeout_s=1).status == "finished" and run.report().lost == 0
    assert capfd.readouterr() == ("", "")  # display="none"
    assert "program tally.py finished" in " ".join(str(run.report()).split())
    assert run.settings()["workers"] == 2 and run.events("scaled")


def test_a_failure_of_the_programs_own_shows_its_traceback(tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    source = (PROGRAMS / "tally.py").read_text()
    program.write_text(source.replace("    g = gridml.Graph()\n", "    raise KeyError('no such column')\n"))
    with pytest.raises(UserCodeError, match="graph failed") as failed:
        gridml.run(program, workers=1, run_dir=tmp_path / "run", display="none")
    assert any("raise KeyError('no such column')" in note for note in failed.value.__notes__)
    assert not (tmp_path / "run").exists()


def test_state_dicts_are_what_a_run_begins_with(tmp_path: Path) -> None:
    import torch

    from gridml.api.program_file import write_state_dicts
    from master.store.saved_replica import read_initial_weights

    state = {"weight": torch.ones(2, 3).bfloat16(), "bias": torch.zeros(2)}
    plain = read_initial_weights(str(write_state_dicts(state, tmp_path / "plain", "gridml.run")))
    assert plain.plain and plain.tensors["weight"].dtype == "float32" and plain.tensors["weight"].sum() == 6
    whole = read_initial_weights(
        str(
            write_state_dicts(
                {"Network[3].model": state, "Word.count": plain.tensors["bias"]}, tmp_path / "whole", "gridml.run"
            )
        )
    )
    assert not whole.plain
    assert set(whole.tensors) == {"Network/3/model/weight", "Network/3/model/bias", "Word/count"}
    with pytest.raises(UsageError, match="init_from with a str in it"):
        write_state_dicts({"weight": "heavy"}, tmp_path / "other", "gridml.run")
    with pytest.raises(UsageError, match=r"expected names as gridml\.load returns them"):
        write_state_dicts({"model": state}, tmp_path / "other", "gridml.run")
    for nothing in ({}, {"Network.model": {}}):
        with pytest.raises(UsageError, match=r"gridml\.run got init_from without a tensor"):
            write_state_dicts(nothing, tmp_path / "other", "gridml.run")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_what_failed_before_it_began_leaves_no_directory(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"run_dir": tmp_path / "run"} if named else {}
    with pytest.raises(UsageError, match="init-from names a file with the keys of one state dict"):
        gridml.run(PROGRAMS / "tally.py", workers=1, init_from={"x": np.zeros(3)}, display="none", **given)
    assert not [*tmp_path.iterdir()]


def test_a_directory_that_was_there_before_stays(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds other files, such as notes"):
        gridml.run(PROGRAMS / "tally.py", workers=1, init_from={"x": np.zeros(3)}, run_dir=root, display="none")
    assert [path.name for path in root.iterdir()] == ["notes.txt"]


def test_a_run_that_is_handed_over_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from master.backends.registry import BACKENDS

    batch, handed = BACKENDS.find("condor").batch, []
    monkeypatch.setattr(batch, "check_reachable", lambda: None)
    monkeypatch.setattr(batch, "submit_master", lambda settings, directory: handed.append((settings, directory.root)))
    monkeypatch.setattr(batch, "master_submitted", lambda directory: True)
    program, root = PROGRAMS / "tally.py", tmp_path / "run"
    run = gridml.submit(program, workers=3, seed=4, request_memory="2GB", run_dir=root, display="none")
    ((settings, place),) = handed
    assert place == root and (settings.backend, settings.workers, settings.seed) == ("condor", 3, 4)
    assert run.status == "submitted" and run.settings()["condor"]["request_memory"]
    assert capfd.readouterr() == ("", "")
    with pytest.raises(TimeoutError, match="is submitted after 0 s"):
        run.wait(timeout_s=0)


def test_on_event_is_rejected_for_a_submitted_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot call it. Give foreground=True, or .* run\.events\(\)"):
        gridml.submit(PROGRAMS / "tally.py", run_dir=tmp_path / "run", on_event=print)
    assert not (tmp_path / "run").exists()


CALLS = [gridml.run, gridml.submit, gridml.launch, gridml.resume, gridml.simulate]


@pytest.mark.parametrize("call", CALLS, ids=lambda f: f.__name__)
def test_displays_and_listeners_that_are_none_are_refused_before_anything_is_written(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=rf"gridml\.{call.__name__} got display='termnal'; expected one of auto, "):
        call(PROGRAMS / "tally.py", display="termnal")
    with pytest.raises(UsageError, match=rf"gridml\.{call.__name__} got on_event='plain'; expected a function"):
        call(PROGRAMS / "tally.py", on_event="plain")
    assert not [*tmp_path.iterdir()]
