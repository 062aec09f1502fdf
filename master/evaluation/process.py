"""The evaluation process: runs the user's evaluate, and answers the requests of its master one by one.

It loads the run's saved copy of the program. It builds the graph only when a request needs more than a version.
Requests and answers are bundles. Standard output and error go to the file that the master opened.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import faulthandler
import json
import os
import resource
import sys
from collections.abc import Mapping
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gridml.engine.lazy_dynamo import import_dynamo_lazily
from gridml.engine.parent import die_with_parent
from gridml.errors import DamagedError, GridmlError, StorageError, UserCodeError
from gridml.model.chunk import Chunk
from gridml.model.graph import Graph
from gridml.model.loading import load
from gridml.model.program import Program
from gridml.protocol import bundle
from master.evaluation.evaluator import InlineEvaluator, Subject
from master.store.local_fields import open_base
from master.store.rundir import RunDirectory
from master.store.settings import RunSettings

OOM_SCORE_ADJ = "500"  # of at most 1000; when memory runs out, the kernel kills this process before the master


def main(argv: list[str] | None = None) -> int:
    """Answer until the master closes the channel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True, type=Path, help="the run directory")
    parser.add_argument("--program", required=True, type=Path, help="the user's own file")
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--memory", required=True, type=int, help="bytes of data this process may have")
    parser.add_argument("--channel", required=True, type=int, help="the descriptor on which requests come")
    parser.add_argument("--parent", required=True, type=int, help="process id to die with")
    options = parser.parse_args(argv)
    die_with_parent(options.parent)
    faulthandler.enable()  # prints the stack on a fatal signal, which the master then quotes
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    memory = options.memory if most == resource.RLIM_INFINITY else min(options.memory, most)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
    service = _Service(RunSettings(options.program, seed=options.seed), RunDirectory(options.root), memory)
    channel = Connection(options.channel)
    os.register_at_fork(after_in_child=channel.close)  # else a child that evaluate forks could keep it open
    service.prepare()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            answer = service.answer(channel.recv_bytes())
            sys.stdout.flush()
            channel.send_bytes(answer)
    return 0


class _Service:
    """Answers requests about one run."""

    def __init__(self, settings: RunSettings, directory: RunDirectory, memory: int) -> None:
        self._settings = settings
        self._directory = directory
        self._memory = memory

    def prepare(self) -> None:
        """Load the program before the first request. If that fails, the first request reports the error."""
        with contextlib.suppress(GridmlError):
            _ = self._program

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request, or the error to report."""
        message, tensors = bundle.decode(request)
        try:
            return bundle.encode(*self._compute(message, tensors))
        except GridmlError as error:
            return bundle.encode(self._error_message(error), {})

    def _compute(self, message: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        subject, limit_s = Subject.of(message["subject"]), float("inf")
        self._load_fields()
        if message["task"] == "evaluate":
            evaluated = self._evaluator.evaluate(subject, limit_s)
            metrics = json.dumps(evaluated.metrics)  # as text, because the message of a bundle rejects NaN
            return {"metrics": metrics, "problem": evaluated.not_recalibrated}, {}
        if message["task"] == "statistics":
            statistics, problem = self._evaluator.statistics(subject, limit_s)
            return {"problem": problem}, {name: t for views in statistics.values() for name, t in views.items()}
        chunk = Chunk.decode(tensors["chunk"].tobytes())
        return {"flops": self._evaluator.flops(subject, chunk, limit_s)}, {}

    def _error_message(self, error: GridmlError) -> dict[str, Any]:
        text, traceback = str(error), error.traceback_text if isinstance(error, UserCodeError) else ""
        if _is_out_of_memory(error.__cause__):
            text += f" It may have {self._memory / 1e9:.3g} GB of memory: take fewer rows at a time."
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            full = "the disk was full as the program was evaluated. Make room, then go on with gridml resume."
            return {"error": StorageError.__name__, "text": full, "traceback": "", "file": None}
        file = str(error.file) if isinstance(error, DamagedError) else None
        return {"error": type(error).__name__, "text": text, "traceback": traceback, "file": file}

    @cached_property
    def _program(self) -> Program:
        kept = self._directory.saved_program(self._settings.program)
        loaded = load(kept.program, self._settings.program)
        if loaded.uses_torch:
            import torch

            torch.set_num_threads(1)  # the machine is shared with workers and other users; evaluate may set more
            import_dynamo_lazily()
        return loaded

    @cached_property
    def _graph(self) -> Graph:
        return self._program.build(self._settings.program)

    @cached_property
    def _evaluator(self) -> InlineEvaluator:
        return InlineEvaluator(self._settings, self._program, self._graph_now, self._directory)

    def _graph_now(self) -> Graph:
        made = "_graph" in vars(self)
        graph = self._graph
        if not made:
            self._load_fields()
        return graph

    def _load_fields(self) -> None:
        """If the graph was built, map the newest values of the fields that f changes into it. The master writes new
        files of these fields at the end of each epoch."""
        for field, column in self._graph.mutable_columns().items() if "_graph" in vars(self) else ():
            if len(column):
                self._graph.replace_column(field, open_base(self._directory.fields / f"{field}.npy", column))


def _is_out_of_memory(cause: BaseException | None) -> bool:
    """Return whether an allocation failed. Torch raises a RuntimeError, which only its text identifies."""
    return isinstance(cause, MemoryError) or "allocate memory" in str(cause) or "enough memory" in str(cause)
