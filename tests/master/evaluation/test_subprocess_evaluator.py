"""Subprocess evaluation: the master survives the death of the process, and reports its cause."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from gridml.errors import DamagedError, ProgramError, RunError, UserCodeError
from gridml.model.loading import load
from master.evaluation.evaluator import Subject
from master.evaluation.metrics import first_chunk
from master.evaluation.subprocess_evaluator import LOG, SubprocessEvaluator
from master.launch import resume, start
from master.ports.environment import Environment
from master.store.reader import opened, read_facts
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.spec import RunSpec
from master.store.versions import Versions, initial
from tests.support.in_ledger import epochs_of

pytestmark = pytest.mark.real
LONG_S = 120.0
SHORT_S = 3.0
MEMORY = 1 << 30
PROGRAM = """
import os, signal, time
import numpy as np
import gridml

class Sum(gridml.Vertex):
    value = gridml.array("float64")
    aggregate = gridml.add()

class Number(gridml.Vertex):
    value = gridml.array("float64")
    seen = gridml.array("int64", mutable=True)
    total = gridml.edge(Sum)

@gridml.update(batch=10)
def train(numbers: gridml.Batch[Number], total: Sum) -> None:
    numbers.seen += 1
    total.value = total.value + numbers.value.sum()

def graph() -> gridml.Graph:
    print("the graph is made")
    g = gridml.Graph()
    g.add(Number, value=np.ones(400), seen=np.zeros(400, np.int64), total=g.add(Sum, value=np.zeros(1)))
    return g

calls = 0

def evaluate({arguments}) -> dict[str, float]:
    global calls
    calls += 1
    {body}

program = gridml.Program(graph, train, evaluate, epochs=2)
"""
SEGFAULT = "os.kill(os.getpid(), signal.SIGSEGV)"
Make = Callable[..., SubprocessEvaluator]


@pytest.fixture
def subject() -> Subject:
    return Subject(2, 0, None)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes the evaluator of a run at its first version."""
    made: list[SubprocessEvaluator] = []

    def make_one(
        body: str, *, arguments: str = "total: Sum", memory: int = MEMORY, text: str = PROGRAM
    ) -> SubprocessEvaluator:
        path = tmp_path / "program.py"
        path.write_text(text.format(body=body, arguments=arguments))
        directory = RunDirectory(tmp_path / "run")
        directory.create()
        directory.saved_program(path).keep({path.name: path.read_bytes()})
        program = load(path)
        graph = program.build(path)
        Versions(directory.versions, durable=False).write(0, initial(graph, 0))
        made.append(SubprocessEvaluator(RunSpec(Settings(path), program, graph), directory, memory))
        return made[-1]

    yield make_one
    for one in made:
        one.close()


def pid_of(evaluator: SubprocessEvaluator) -> int:
    assert evaluator._child is not None
    return evaluator._child.process.pid


def test_the_result_of_evaluate_is_returned(make: Make, subject: Subject) -> None:
    evaluator = make('print("so", "far"); return {"value": total.value, "odd": [np.nan, np.inf], "pid": os.getpid()}')
    evaluated = evaluator.evaluate(subject, LONG_S)
    assert evaluated.metrics["value"] == 0.0 and evaluated.metrics["odd"][1] == np.inf
    assert math.isnan(evaluated.metrics["odd"][0])
    assert evaluated.metrics["pid"] == pid_of(evaluator) != os.getpid()
    assert evaluated.events == [("evaluate", "so far")], "and no graph is made where a version does"


def test_one_process_does_for_all_epochs(make: Make, subject: Subject) -> None:
    evaluator = make('return {"calls": calls}')
    assert [evaluator.evaluate(subject, LONG_S).metrics["calls"] for _ in range(3)] == [1, 2, 3]


def test_fields_are_as_the_master_shows_them(make: Make, subject: Subject, tmp_path: Path) -> None:
    evaluator = make('return {"seen": numbers.seen.sum()}', arguments="numbers: gridml.Batch[Number]")
    column = tmp_path / "run" / "fields" / "Number.seen.npy"
    column.parent.mkdir()
    for value in (1, 5):
        np.save(column.with_suffix(".new.npy"), np.full(400, value))
        column.with_suffix(".new.npy").replace(column)
        assert evaluator.evaluate(subject, LONG_S).metrics["seen"] == 400 * value


def test_a_signal_is_named_with_the_line_and_what_to_do(make: Make, subject: Subject) -> None:
    evaluator = make(SEGFAULT)
    with pytest.raises(
        UserCodeError, match="evaluate after epoch 3 ended its process with signal SIGSEGV, 2 times"
    ) as caught:
        evaluator.evaluate(subject, LONG_S)
    assert "fix evaluate and resume the run --with-changes" in str(caught.value)
    assert "program.py" in caught.value.traceback_text and "in evaluate" in caught.value.traceback_text


def test_what_was_killed_once_is_tried_again(make: Make, subject: Subject, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    body = f'if not os.path.exists({str(mark)!r}): open({str(mark)!r}, "w").close(); os.kill(os.getpid(), 9)'
    evaluator = make(f"{body}\n    return {{'calls': calls}}")
    evaluated = evaluator.evaluate(subject, LONG_S)
    assert evaluated.metrics == {"calls": 1}
    assert [topic for topic, _ in evaluated.events] == ["warning"]
    assert "signal SIGKILL; it is tried once more" in evaluated.events[0][1]


def test_an_exit_is_no_answer(make: Make, subject: Subject) -> None:
    with pytest.raises(UserCodeError, match="ended its process with exit status 0"):
        make("os._exit(0)").evaluate(subject, LONG_S)


def test_memory_is_limited(make: Make, subject: Subject) -> None:
    evaluator = make("return {'x': np.ones(1 << 28).sum()}")  # 2 GB
    with pytest.raises(UserCodeError, match=r"MemoryError.* It may have 1.07 GB of memory: take fewer rows") as caught:
        evaluator.evaluate(subject, LONG_S)
    assert "np.ones" in caught.value.traceback_text


def test_time_is_limited(make: Make, subject: Subject) -> None:
    before = psutil.Process().children()
    with pytest.raises(UserCodeError, match=r"evaluate after epoch 3 took longer than 3 s\. The training is kept"):
        make("time.sleep(3600)").evaluate(subject, SHORT_S)
    left = [child for child in psutil.Process().children() if child not in before]
    assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]


def test_errors_are_those_that_evaluate_raises_in_the_master(make: Make, subject: Subject, tmp_path: Path) -> None:
    evaluator = make("return {'x': 1 / 0}")
    with pytest.raises(UserCodeError, match="evaluate failed: ZeroDivisionError") as caught:
        evaluator.evaluate(subject, LONG_S)
    assert "1 / 0" in caught.value.traceback_text
    with pytest.raises(DamagedError, match="its SHA-256 is not the one") as damaged:
        evaluator.evaluate(Subject(2, 0, "0" * 64), LONG_S)
    assert damaged.value.file == tmp_path / "run" / "versions" / "v00000000.safetensors"


def test_what_is_no_dict_of_numbers_is_refused(make: Make, subject: Subject) -> None:
    with pytest.raises(ProgramError, match="evaluate returned NoneType"):
        make("return None").evaluate(subject, LONG_S)


def test_one_that_is_closed_ends_at_once_and_computes_no_more(make: Make, subject: Subject) -> None:
    evaluator = make("return {}")
    evaluator.evaluate(subject, LONG_S)
    pid = pid_of(evaluator)
    evaluator.close()
    assert not psutil.pid_exists(pid)
    with pytest.raises(RunError, match="the run has ended"):
        evaluator.evaluate(subject, LONG_S)


def test_a_process_that_dies_over_the_operations_of_f_stops_nothing(make: Make, subject: Subject) -> None:
    text = PROGRAM.replace("    numbers.seen += 1", f"    {SEGFAULT}")
    evaluator = make("return {}", text=text)
    program = load(evaluator._settings.program)
    chunk = first_chunk(program, program.build(evaluator._settings.program), 10)
    assert evaluator.flops(subject, chunk, LONG_S) is None
    assert evaluator.evaluate(subject, LONG_S).metrics == {}


def test_a_run_whose_evaluate_dies_stops_with_the_reason_and_goes_on_when_it_is_mended(
    pool: Callable[[], Environment], tmp_path: Path
) -> None:
    path, root = tmp_path / "program.py", tmp_path / "run"
    path.write_text(PROGRAM.format(arguments="total: Sum", body=SEGFAULT))
    with start(Settings(path, workers=1), root, pool()) as run, pytest.raises(UserCodeError, match="SIGSEGV"):
        run.finish()
    facts = facts_of(root)
    assert facts["status"] == "failed"
    assert "evaluate after epoch 1 ended its process with signal SIGSEGV" in facts["stopped_because"]
    path.write_text(PROGRAM.format(arguments="total: Sum", body='return {"sum": total.value}'))
    with resume(root, pool(), with_changes=True) as run:
        run.finish()
        said = [json.loads(epoch["metrics"]) for epoch in epochs_of(run.ledger)]
    assert said == [{"sum": 400.0}, {"sum": 800.0}]


def test_it_dies_with_the_master(tmp_path: Path) -> None:
    path, pipe = tmp_path / "program.py", tmp_path / "pid"
    os.mkfifo(pipe)
    body = f'open({str(pipe)!r}, "w").write(str(os.getpid())); time.sleep(3600)'
    path.write_text(PROGRAM.format(arguments="total: Sum", body=body))
    command = [sys.executable, "-P", "-m", "gridml", "run", str(path)]
    with subprocess.Popen([*command, "--run-dir", str(tmp_path / "run")], stdout=subprocess.DEVNULL) as master:
        process = psutil.Process(int(pipe.read_text()))
        master.send_signal(signal.SIGKILL)
    assert psutil.wait_procs([process], LONG_S)[0] == [process]
    assert (tmp_path / "run" / "logs" / LOG).read_text() == ""


def facts_of(root: Path) -> dict[str, str]:
    with opened(root) as db:
        return read_facts(db)


FORKS = """
    import multiprocessing, time
    if not os.path.exists({path!r} + ".warm"):
        open({path!r} + ".warm", "w").close()
        return {{}}
    left = multiprocessing.Process(target=time.sleep, args=(600,))
    left.start()
    open({path!r}, "w").write(str(left.pid))
    {then}
"""


@pytest.mark.parametrize(("then", "why"), [("os._exit(3)", "exit status 3"), ("time.sleep(600)", "longer than")])
def test_what_evaluate_started_neither_hides_its_end_nor_outlives_it(
    then: str, why: str, make: Make, subject: Subject, tmp_path: Path
) -> None:
    """A child of evaluate held the channel open, so the end of the process was noticed only after an hour or more."""
    evaluator = make(FORKS.format(path=str(tmp_path / "left"), then=then))
    evaluator.evaluate(
        subject, LONG_S
    )  # so that the short limit does not include starting Python and loading the program
    with pytest.raises(UserCodeError, match=why):
        evaluator.evaluate(subject, LONG_S if "exit" in then else SHORT_S)
    with contextlib.suppress(ProcessLookupError):  # it may have ended already
        left = os.pidfd_open(int((tmp_path / "left").read_text()))
        ended, _, _ = select.select([left], [], [], LONG_S)
        os.close(left)
        assert ended, "it lives on"
