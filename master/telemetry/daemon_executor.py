"""One thread for what nobody must wait for: it does not keep its process from ending, whatever it is at."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar, final

P = ParamSpec("P")
T = TypeVar("T")


@final
class DaemonExecutor(Executor):
    """Does what is submitted, one after the other. After `shutdown` nothing more is begun."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended = False
        self._thread = Thread(target=self._work, name="loggers", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # it is for who asks for the result
                future.set_exception(error)

        self._jobs.put(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = cancel_futures or self._ended
        self._jobs.put(None)
        if wait:
            self._thread.join()

    def _work(self) -> Any:
        while (job := self._jobs.get()) is not None:
            if not self._ended:
                job()
