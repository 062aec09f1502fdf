"""Subprocess evaluator: runs the user's evaluate in a process of its own, with limits of memory and time.

The master survives a crash of that process. The process stays alive between epochs, so that evaluate loads its data
only once. The process dies with the thread that started it. The functions that decide on limits and retries are pure.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from gridml import errors
from gridml.errors import DamagedError, GridmlError, RunError, UserCodeError
from gridml.model.chunk import Chunk
from gridml.protocol import bundle
from gridml.protocol.foreign import MAX_TRACEBACK_CHARS, printable
from gridml.protocol.push import module_key
from master.evaluation.evaluator import Evaluated, Evaluator, Statistics, Subject
from master.evaluation.metrics import ADVICE
from master.state.jobs import in_words
from master.store.rundir import RunDirectory
from master.store.spec import RunSpec

MIN_LIMIT_S, MAX_LIMIT_S = 3600.0, 7 * 86400.0  # bounds of the time limit
LIMIT_EPOCHS = 10  # the time limit is this many times the duration of the epoch
MEMORY_SHARE = 0.5  # the memory limit as a share of the machine's memory
MAX_TRIES = 2  # tries of one evaluation, because a signal or a lack of memory can be a matter of chance


def limit_s(epoch_s: float) -> float:
    """Return the time limit for the evaluation of an epoch that took `epoch_s`."""
    return min(max(MIN_LIMIT_S, LIMIT_EPOCHS * epoch_s), MAX_LIMIT_S)


def max_memory(machine: int) -> int:
    """Return the memory limit in bytes on a machine with `machine` bytes of memory, which it shares with others."""
    return round(MEMORY_SHARE * machine)


def should_retry(deaths: int) -> tuple[bool, str]:
    """Return whether to retry an evaluation whose process has died `deaths` times, and why."""
    if deaths < MAX_TRIES:
        return True, "it is tried once more"
    return False, f"{deaths} times in a row"


LOG = "evaluate.log"  # the file of what evaluate prints, in the folder of the workers' logs
MAX_LINES = 20  # lines of output that are recorded after an evaluation
# -P and the import of gridml before master keep a user's own master.py, in the working directory or on PYTHONPATH, from
# replacing this package.
_COMMAND = ("-P", "-c", "import sys, gridml; from master.evaluation.process import main; sys.exit(main())")


class _NoAnswer(Exception):
    """A request without an answer, with the last output of the process."""

    def __init__(self, why: str, last_output: str) -> None:
        super().__init__(why)
        self.last_output = last_output


class _TimedOut(_NoAnswer):
    """The request exceeded its time limit, and the process was killed."""


class _Died(_NoAnswer):
    """The process died during the request."""


@dataclass
class _Child:
    """The evaluation process."""

    process: subprocess.Popen[bytes]
    channel: Connection  # carries requests and answers
    reported: int  # bytes at the start of the log file that were already recorded, or are older than this process

    def end(self) -> int:
        """Kill the process and its children. Return its exit status, or the negative number of the signal."""
        self.channel.close()
        self.kill()
        return self.process.wait()

    def kill(self) -> None:
        """Kill the process and its children, which are in the session that it leads. Idempotent."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def wait_for_answer(self, limit_s: float) -> bool:
        """Wait for an answer, or for the end of the process. Return False after `limit_s` without either."""
        # The end of the channel is not enough, because children of evaluate may hold the channel open.
        ended = os.pidfd_open(self.process.pid)
        try:
            return bool(wait([self.channel, ended], limit_s))
        finally:
            os.close(ended)


class SubprocessEvaluator(Evaluator):
    """Computes in a child process with at most `memory` bytes of data; None: `MEMORY_SHARE` of the machine's memory."""

    def __init__(self, spec: RunSpec, directory: RunDirectory, memory: int | None = None) -> None:
        self._settings = spec.settings
        self._directory = directory
        self._memory = max_memory(machine_memory()) if memory is None else memory
        self._child: _Child | None = None  # replaced only while holding `_lock`
        self._lock = Lock()  # held during a request
        self._closed = False  # `close` sets it without the lock, so as not to wait for a request under way

    def evaluate(self, subject: Subject, limit_s: float) -> Evaluated:
        events: list[tuple[str, str]] = []
        what = f"evaluate after epoch {subject.epoch + 1}"
        message, _ = self._request_with_retry(what, {"task": "evaluate", "subject": asdict(subject)}, limit_s, events)
        return Evaluated(json.loads(message["metrics"]), message["problem"], events)

    def statistics(self, subject: Subject, limit_s: float) -> tuple[Statistics, str | None]:
        request = {"task": "statistics", "subject": asdict(subject)}
        try:
            message, tensors = self._request("f for the running statistics", request, {}, limit_s)
        except _NoAnswer as error:
            return {}, str(error)
        statistics: dict[tuple[str, int], dict[str, Any]] = {}
        for name, tensor in tensors.items():
            key = module_key(name)
            assert key is not None, "an array field has no running statistics"
            statistics.setdefault(key, {})[name] = tensor
        return statistics, message["problem"]

    def flops(self, subject: Subject, chunk: Chunk, limit_s: float) -> float | None:
        request = {"task": "flops", "subject": asdict(subject)}
        try:
            payload = np.frombuffer(chunk.encode(), np.uint8)
            message, _ = self._request("f for its operations", request, {"chunk": payload}, limit_s)
        except (_NoAnswer, GridmlError):  # the number only appears in the report, so no error is raised
            return None
        return None if message["flops"] is None else float(message["flops"])

    def prepare(self) -> None:
        with self._lock, contextlib.suppress(RunError):
            self._running_child()

    def close(self) -> None:
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()  # ends a request that waits for its answer, and so frees the lock
        with self._lock:
            if self._child is not None:
                self._child.end()
                self._child = None

    def _request_with_retry(
        self, what: str, request: Mapping[str, Any], limit_s: float, events: list[tuple[str, str]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the answer to a request; if the process dies, retry. Raises UserCodeError if no answer comes."""
        for deaths in count(1):
            try:
                answer = self._request(what, request, {}, limit_s)
                events += [("evaluate", line) for line in self._new_output()]
                return answer
            except _TimedOut as late:
                raise UserCodeError(f"{late}. {ADVICE}", late.last_output) from None
            except _Died as died:
                again, why = should_retry(deaths)
                if not again:
                    limit = f"It may have {self._memory / 1e9:.3g} GB of memory"
                    raise UserCodeError(f"{died}, {why}. {limit}. {ADVICE}", died.last_output) from None
                events.append(("warning", f"{died}; {why}"))
        raise AssertionError("unreachable")

    def _request(
        self, what: str, request: Mapping[str, Any], tensors: Mapping[str, Any], limit_s: float
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the answer to a request. Raises _Died, _TimedOut, and the error that an answer reports."""
        with self._lock:
            child = self._running_child()
            try:
                child.channel.send_bytes(bundle.encode(request, tensors))
                if not child.wait_for_answer(limit_s):
                    self._child = None
                    child.end()
                    raise _TimedOut(f"{what} took longer than {limit_s:,.0f} s", self._last_output(child.reported))
                if not child.channel.poll(0):
                    raise EOFError
                message, values = bundle.decode(child.channel.recv_bytes())
            except (EOFError, OSError):
                self._child = None
                how = in_words(child.end())
                raise _Died(f"{what} ended its process with {how}", self._last_output(child.reported)) from None
        if "error" in message:
            raise _decode_error(message)
        return message, values

    def _running_child(self) -> _Child:
        """Return the evaluation process; start one if none runs. Raises RunError after `close`."""
        if self._child is None and not self._closed:
            self._child = self._start_child()
        if self._closed or self._child is None:  # checked again, because `close` may have run before the process began
            raise RunError("nothing is evaluated any more: the run has ended.")
        return self._child

    def _start_child(self) -> _Child:
        ours, theirs = socket.socketpair()
        with open(self._directory.logs / LOG, "ab") as output, theirs:
            reported = output.tell()
            process = subprocess.Popen(
                [
                    sys.executable,
                    *_COMMAND,
                    f"--root={self._directory.root.absolute()}",
                    f"--program={self._settings.program}",
                    f"--seed={self._settings.seed}",
                    f"--memory={self._memory}",
                    f"--channel={theirs.fileno()}",
                    f"--parent={os.getpid()}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that only the master gets the Ctrl-C of a terminal
            )
        return _Child(process, Connection(ours.detach()), reported)

    def _new_output(self) -> list[str]:
        """Return the last lines of the output since the last call."""
        child = self._child
        if child is None:
            return []
        text, child.reported = self._log_since(child.reported)
        lines = text.splitlines()
        return [line for line in lines if line.strip()][-MAX_LINES:]

    def _last_output(self, since: int) -> str:
        """Return the end of the output from byte `since`: after a fatal signal, the stack of the process."""
        return self._log_since(since)[0].strip()

    def _log_since(self, since: int) -> tuple[str, int]:
        """Return (the end of the output from byte `since`, the length of the whole log in bytes)."""
        with (self._directory.logs / LOG).open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(since, end - MAX_TRACEBACK_CHARS))
            return printable(log.read(MAX_TRACEBACK_CHARS).decode(errors="replace"), MAX_TRACEBACK_CHARS), end


def machine_memory() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _decode_error(message: Mapping[str, Any]) -> GridmlError:
    """Return the error in an answer."""
    kind: type[GridmlError] = getattr(errors, message["error"])
    if issubclass(kind, DamagedError):
        return kind(message["text"], Path(message["file"]))
    return kind(message["text"], message["traceback"]) if issubclass(kind, UserCodeError) else kind(message["text"])
