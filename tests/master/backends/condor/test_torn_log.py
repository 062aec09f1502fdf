"""Events of a log that HTCondor's bindings cannot decode."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from master.backends.condor.backend import Condor


def test_a_name_that_is_no_text_does_not_end_the_master() -> None:
    def events(stop_after: int) -> Iterator[Any]:
        yield from ()
        b"slot1@caf\xe9".decode()

    log = SimpleNamespace(events=events)
    backend: Any = SimpleNamespace(_log=log, _condor=SimpleNamespace(HTCondorException=OSError))
    assert [*Condor._new_log_events(backend)] == []
