"""The command line: each mistake has one message and its own exit status; a run is driven, stopped and reported."""

from __future__ import annotations

import builtins
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest

from gridml.cli import main
from gridml.cli.arguments import print_result
from master.store.rundir import MasterLock, RunDirectory, claim_root, default_root
from master.views import terminal

COMMANDS = ("run", "resume", "status", "watch", "report", "cancel", "rollback", "scale")
COUNT, EPOCHS = 600, 2

# Counts documents. Workers wait at a gate, so that the test decides when a run can end.
PROGRAM = f"""
import time
from pathlib import Path

import numpy as np

import gridml


class Total(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Document(gridml.Vertex):
    number = gridml.array("int64")
    total = gridml.edge(Total)


@gridml.update(batch=20)
def train(documents: gridml.Batch[Document], total: gridml.Batch[Total]) -> None:
    while Path(__file__).with_name("shut").exists():
        time.sleep(0.01)
    np.add.at(total.count, documents.total.index, 1)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    total = g.add(Total, count=np.zeros(1, np.int64))
    g.add(Document, number=np.arange({COUNT}), total=total)
    return g


def evaluate(total: gridml.Batch[Total]) -> dict[str, int]:
    return {{"counted": int(total.count.sum())}}


program = gridml.Program(graph, train, evaluate, epochs={EPOCHS})
"""
Answer = tuple[int, str, str]


@pytest.fixture
def gridml(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """A function that calls the command line in a temporary folder and returns (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main.main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return code or 0, out, err

    return call


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "counting.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(gridml: Callable[..., Answer], command: str) -> None:
    status, out, _ = gridml(command, "--help")
    assert status == 0 and f"Example: gridml {command}" in out


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [("gridml.cli.main", {"master.state.jobs", "master.store.settings", "master.backends"}), ("master.launch", set())],
)
def test_what_few_runs_need_is_not_imported_by_all(module: str, unwanted: set[str]) -> None:
    """Of the master, help imports only descriptions of options; the master imports nothing that takes a second."""
    heavy = {"torch", "matplotlib", "scipy.stats", "boto3", *unwanted}
    script = f"import sys, {module}; print(*sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("source", "status", "expected"),
    [
        (None, 2, "no such file"),
        ("x = 1\n", 3, "exactly one gridml.Program; found none"),
        (PROGRAM + "\nother = gridml.Program(graph, train)\n", 3, "found 2 (program, other)"),
        ("import nothing_of_that_name\n", 3, "No module named 'nothing_of_that_name'"),
        (PROGRAM + "\nraise ValueError('halfway')\n", 3, "ValueError: halfway"),
    ],
)
def test_a_file_that_is_no_program(
    gridml: Callable[..., Answer], tmp_path: Path, source: str | None, status: int, expected: str
) -> None:
    path = tmp_path / "wrong.py"
    if source is not None:
        path.write_text(source)
    found, _, err = gridml("run", path)
    assert found == status and expected in err and err.startswith("Error: ")
    assert "gridml/cli/main.py" not in err and not (tmp_path / "runs").exists()


def test_a_graph_that_fails_shows_the_users_own_traceback_once(
    gridml: Callable[..., Answer], program: Path, tmp_path: Path
) -> None:
    program.write_text(PROGRAM.replace("np.zeros(1, np.int64)", "np.zeros(1, np.int64) / {}"))
    status, _, err = gridml("run", program)
    assert status == 4 and err.count("Traceback") == 1 and err.count("in graph") == 1
    assert "gridml/cli/main.py" not in err and "master/run.py" not in err and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--workers", "0"], "--workers is 0; expected at least 1"),
        (["--epochs", "0"], "--epochs is 0"),
        (["--push-every", "-1"], "--push-every is -1"),
        (["--speedup", "0"], "--speedup is 0"),
        (["--lifetime", "normal(45m)"], "has 1 parameters, expected 2"),
        (["--lifetime", "forever"], 'cannot read the lifetime "forever"'),
        (["--trace", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["--trace", "counting.py"], "expected milliseconds,add|remove,node"),
        (["--trace", "good.csv", "--lifetime", "normal(45m,10m)"], "both --lifetime and --trace"),
        (["--run-dir", "counting.py/run"], "cannot be made"),
    ],
)
def test_settings_that_make_no_sense(
    gridml: Callable[..., Answer], program: Path, tmp_path: Path, options: list[str], expected: str
) -> None:
    (tmp_path / "good.csv").write_text("0,add,node1\n")
    status, _, err = gridml("run", program, *options)
    assert status == 2 and expected in err and "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_an_option_that_is_not_there(gridml: Callable[..., Answer], program: Path) -> None:
    status, _, err = gridml("run", program, "--worker", "3")
    assert status == 2 and "--workers" in err and "Traceback" not in err


def test_a_working_directory_where_no_run_can_be_made(
    gridml: Callable[..., Answer], program: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("in the way")
    status, _, err = gridml("run", program)
    assert status == 2 and "cannot be made" in err and "--run-dir" in err and "Traceback" not in err


@pytest.mark.parametrize("command", ["resume", "status", "watch", "report", "cancel", "rollback"])
def test_a_directory_that_is_no_run(gridml: Callable[..., Answer], tmp_path: Path, command: str) -> None:
    status, _, err = gridml(command, tmp_path)
    assert status == 7 and "is not a run" in err and "Traceback" not in err


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    def broken(*arguments: Any, **options: Any) -> NoReturn:
        raise ZeroDivisionError("a defect of gridml")

    monkeypatch.setattr(terminal, "drive", broken)
    with pytest.raises(ZeroDivisionError):
        main.main(["run", str(program)])


# --- with real workers


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """The console script, as a process whose output can be read by lines."""
    script = shutil.which("gridml", path=str(Path(sys.executable).parent))
    assert script is not None, "gridml is not installed beside this Python; run pip install -e ."
    return subprocess.Popen(
        [script, *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has Ctrl-C ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def until(lines: IO[str] | None, wanted: str) -> str:
    """Read lines up to the first that contains `wanted`."""
    assert lines is not None
    seen = []
    for text in lines:
        seen.append(text)
        if wanted in text:
            return text
    raise AssertionError(f"{wanted!r} never came; only:\n{''.join(seen)}")


def done(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture
def waiting(program: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A started run in tmp_path/run whose workers wait at the gate `shut`."""
    (tmp_path / "shut").touch()
    process = start("run", program, "--run-dir", "run", cwd=tmp_path)
    try:
        until(process.stdout, "running   w2")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.real
def test_a_run_ends_with_its_report_and_exact_credit(
    gridml: Callable[..., Answer], program: Path, tmp_path: Path
) -> None:
    status, out, err = done(start("run", program, "--workers", "2", "--run-dir", "run", cwd=tmp_path))
    assert status == 0, err
    report = gridml("report", "run")[1]
    assert report and not [line for line in report.splitlines() if line != line.rstrip()]
    assert f"every vertex of {COUNT * EPOCHS:,}" in out and "0 by SIGTERM, 0 by SIGKILL" in out
    found = json.loads(gridml("report", "run", "--json")[1])
    assert found["vertices"] == COUNT and found["workers"] == 2 and found["kills"] == 0
    assert [(e["credited"], e["duplicated"], e["lost"]) for e in found["epochs"]] == [(COUNT, 0, 0)] * EPOCHS
    first, last = (e["metrics"]["counted"] for e in found["epochs"])
    assert COUNT <= first <= last == 2 * COUNT  # the first may end with work of the second
    assert 0 < found["goodput"] <= 1 and 0 < found["worker_s"] <= 2 * found["wall_s"] and found["bytes_down"] > 0
    assert "finished" in gridml("status", "run")[1]
    assert "finished" in gridml("watch", "run")[1]
    watched = [json.loads(line) for line in gridml("watch", "run", "--json")[1].splitlines()]
    assert watched[-2]["topic"] == watched[-1]["status"] == "finished"
    assert json.loads(gridml("status", "run", "--json")[1])["all_credited"] == COUNT * EPOCHS
    status, _, err = gridml("run", program, "--run-dir", "run")
    assert status == 2 and "holds a run already" in err
    status, _, err = gridml("cancel", "run")
    assert status == 8 and "no master drives" in err


@pytest.mark.real
def test_json_is_an_object_a_line_and_ends_with_the_report(program: Path, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("0,add,here\n0,add,there\n1000,remove,there\n")
    run = start("run", program, "--trace", "nodes.csv", "--speedup", "1", "--json", cwd=tmp_path)
    status, out, err = done(run)
    assert status == 0, err
    lines = [json.loads(text) for text in out.splitlines()]
    assert [found["kind"] for found in lines if found["kind"] in ("started", "finished", "report")] == [
        "started",
        "finished",
        "report",
    ]
    assert {m["machine"] for m in lines[-1]["report"]["machines"]} == {"here", "there"}
    assert (tmp_path / lines[-1]["report"]["run_dir"] / "ledger.db").is_file()


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_is_stopped_by_a_signal_and_resumed(
    gridml: Callable[..., Answer],
    waiting: subprocess.Popen[str],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    os.kill(waiting.pid, number)
    status, _, err = done(waiting)
    assert status == 128 + number and "Resume with: gridml resume run" in err and "Traceback" not in err
    status, out, _ = gridml("status", "run")
    assert status == 0 and "run: stopped" in out and "gridml resume run" in out
    assert gridml("watch", "run")[0] == 0  # there is nothing to follow
    (tmp_path / "shut").unlink()
    status, out, err = done(start("resume", "run", cwd=tmp_path))
    assert status == 0, err
    found = json.loads(gridml("report", "run", "--json")[1])
    assert (found["status"], found["masters"]) == ("finished", 2)
    assert [(e["credited"], e["duplicated"], e["lost"]) for e in found["epochs"]] == [(COUNT, 0, 0)] * EPOCHS


@pytest.mark.real
def test_a_run_is_watched_and_cancelled_from_elsewhere(
    gridml: Callable[..., Answer], waiting: subprocess.Popen[str], tmp_path: Path
) -> None:
    watching = start("watch", "run", cwd=tmp_path)
    until(watching.stdout, "running   w2")
    assert json.loads(gridml("status", "run", "--json")[1])["master"].startswith(f"pid {waiting.pid} ")
    assert json.loads(gridml("report", "run", "--json")[1])["status"] == "running"
    status, _, err = gridml("resume", "run")
    assert status == 8 and "another master holds run" in err and "gridml watch" in err
    status, out, _ = gridml("cancel", "run")
    assert status == 0 and f"pid {waiting.pid} " in out
    status, _, err = done(waiting)
    assert status == 8 and "cancelled" in err and "gridml resume" in err and "Traceback" not in err
    status, out, _ = done(watching)
    assert status == 0 and "run: cancelled" in out
    assert "was cancelled" in gridml("report", "run")[1]


@pytest.mark.real
def test_a_run_is_scaled_from_elsewhere(
    gridml: Callable[..., Answer], waiting: subprocess.Popen[str], tmp_path: Path
) -> None:
    status, out, _ = gridml("scale", "run", "--workers", "4")
    assert status == 0 and f"pid {waiting.pid} " in out and "--workers 4 instead of 2" in out
    assert "workers: 4 instead of 2" in until(waiting.stdout, "scaled")
    until(waiting.stdout, "running   w4")
    found = json.loads(gridml("status", "run", "--json")[1])
    assert (found["wanted"], found["alive"]) == (4, 4)
    assert json.loads(gridml("scale", "run", "--workers", "1", "--json")[1])["before"] == 4
    assert "4 are queued or running, wanted: 1" in until(waiting.stdout, "dismissed")
    (tmp_path / "shut").unlink()
    status, out, err = done(waiting)
    assert status == 0, err
    found = json.loads(gridml("report", "run", "--json")[1])
    assert found["workers"] == 1 and found["kills"] == 0
    assert json.loads(gridml("status", "run", "--json")[1])["lost"] == 0
    assert [(e["credited"], e["duplicated"], e["lost"]) for e in found["epochs"]] == [(COUNT, 0, 0)] * EPOCHS


@pytest.mark.real
def test_a_request_to_scale_outlives_its_master(
    gridml: Callable[..., Answer], waiting: subprocess.Popen[str], tmp_path: Path
) -> None:
    os.kill(waiting.pid, signal.SIGKILL)
    waiting.wait()
    status, out, _ = gridml("scale", "run", "--workers", "3")
    assert status == 0 and "No master drives it" in out
    going_on = start("resume", "run", cwd=tmp_path)
    assert "workers: 3 instead of 2" in until(going_on.stdout, "scaled")
    (tmp_path / "shut").unlink()
    status, _, err = done(going_on)
    assert status == 0, err
    assert json.loads(gridml("report", "run", "--json")[1])["workers"] == 3


@pytest.mark.real
def test_leaving_a_watch_leaves_the_run(waiting: subprocess.Popen[str], tmp_path: Path) -> None:
    watching = start("watch", "run", cwd=tmp_path)
    until(watching.stdout, "running   w2")
    os.kill(watching.pid, signal.SIGINT)
    status, _, err = done(watching)
    assert status == 130 and "The run continues" in err
    (tmp_path / "shut").unlink()
    assert done(waiting)[0] == 0


@pytest.mark.real
def test_an_f_that_fails_shows_the_users_own_traceback_once(program: Path, tmp_path: Path) -> None:
    program.write_text(PROGRAM.replace("np.add.at(total", "raise ValueError('bad document')\n    np.add.at(total"))
    status, _, err = done(start("run", program, "--workers", "1", "--run-dir", "run", cwd=tmp_path))
    assert status == 4 and err.count("Traceback") == 1 and "in train" in err
    assert "Document" in err and "chunk [" in err and "gridml resume run" in err
    assert "gridml/cli/main.py" not in err and "engine.py" not in err


@pytest.mark.real
def test_a_report_is_drawn_or_says_what_is_missing(
    gridml: Callable[..., Answer], program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert done(start("run", program, "--epochs", "1", "--run-dir", "run", cwd=tmp_path))[0] == 0
    status, _, err = gridml("report", "run", "--plot", "no-such-folder/run.png")
    assert status == 2 and "cannot be written" in err
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    status, _, err = gridml("report", "run", "--plot", "run.png")
    assert status == 2 and "pip install matplotlib" in err and not (tmp_path / "run.png").exists()


def test_a_second_master_learns_which_process_holds_the_run(gridml: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    with (tmp_path / "master.lock").open("w") as file:
        file.write("pid 12 on elsewhere\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        status, _, err = gridml("resume", tmp_path)
    assert status == 8 and "pid 12 on elsewhere" in err


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("gridml 0.")
    with pytest.raises(SystemExit) as ended:
        main.main(["--version", "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["gridml"].startswith("0.")


def test_a_run_without_a_name_takes_a_free_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("master.store.rundir.time.strftime", lambda _: "20260401-120000")
    assert default_root("mnist") == Path("runs/mnist-20260401-120000")
    with (
        claim_root(None, "mnist") as first,
        claim_root(None, "mnist") as second,
    ):  # both are empty
        assert [first, second] == [Path("runs/mnist-20260401-120000"), Path("runs/mnist-20260401-120000-2")]
        (second / "ledger.db").touch()
    assert not first.exists() and second.exists()
    with pytest.raises(RuntimeError), claim_root(None, "mnist") as third:
        raise RuntimeError
    assert third == first and not third.exists()
    assert [*Path("runs").iterdir()] == [second]
    with claim_root(Path("mine"), "mnist") as named:
        assert named == Path("mine") and not named.exists()


@pytest.mark.parametrize("named", ["mine", None], ids=["named", "unnamed"])
def test_a_run_that_did_not_begin_leaves_its_directory_only_to_another_that_does(
    named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def fails(leaving: Callable[[RunDirectory], None]) -> Path:
        with pytest.raises(RuntimeError), claim_root(None if named is None else Path(named), "mnist") as root:
            RunDirectory(root).create()
            leaving(RunDirectory(root))
            raise RuntimeError
        return root

    fails(lambda directory: MasterLock(directory).release())
    assert not [*tmp_path.iterdir()]
    locks: list[MasterLock] = []
    held = fails(lambda directory: locks.append(MasterLock(directory)))  # another process is about to start one there
    assert RunDirectory(held).logs.is_dir()
    locks[0].release()
    shutil.rmtree(held)
    assert RunDirectory(fails(lambda directory: directory.ledger.touch())).logs.is_dir()


def test_a_run_that_is_interrupted_before_it_begins_says_so(
    gridml: Callable[..., Answer], program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gridml.api.run_calls.run_settings", interrupted)
    status, _, err = gridml("run", program)
    assert status == 130 and err == "Stopped before the run began.\n" and not (tmp_path / "runs").exists()


LINES = {"run", "submit", "launch", "resume", "watch"}  # commands with an event a line


def test_json_is_one_document_or_the_help_says_lines(capfd: pytest.CaptureFixture[str]) -> None:
    """A command that does not say JSON Lines prints by `print_result`, which this checks, or one line."""
    import typer

    def commands(group: Any, *before: str) -> Iterator[tuple[str, Any]]:
        for name, each in group.commands.items():
            yield from (
                commands(each, *before, name) if hasattr(each, "commands") else [(" ".join((*before, name)), each)]
            )

    help_of = {
        name: option.help
        for name, each in commands(typer.main.get_command(main.command_line()))
        for option in each.params
        if "--json" in option.opts
    }
    assert {name for name, said in help_of.items() if "JSON Lines" in said} == LINES
    print_result([{"a": float("inf")}, {}], "text", as_json=True)
    assert json.loads(capfd.readouterr().out) == [{"a": None}, {}]
