"""What f logs: numbers by name, each the mean of a call's vertices, summed until a push takes them along.

The sums travel in the push that holds the same vertices (`gridml.protocol.messages.Logged`) and are credited with them:
what is logged for vertices that are never credited, because a machine was taken away or f failed, is never counted.
"""

from __future__ import annotations

from typing import Any

from gridml.errors import ProgramError
from gridml.model.host_memory import brought
from gridml.protocol.messages import LARGEST_LOGGED, LONGEST_LOGGED, MOST_LOGGED, Logged
from gridml.protocol.text import NAME, printable

_listening: Recorder | None = None  # that of the engine in whose f this process is


def log(**values: Any) -> None:
    """Log numbers of the vertices that f is called with, by name: `gridml.log(loss=loss)`.

    A value is one number: Python's, NumPy's, or a tensor with one element, of any device; for a batch it is the mean
    of its vertices. What a call logs twice under one name counts as the mean of both. The run shows the mean over
    vertices, each weighted once, as it is credited; a value that is not finite, or beyond 1e40, is left out with its
    vertices. Outside f it does nothing, so that f can be tested alone.

    Raises ProgramError for what is not one number, for a name of more than 64 characters, and for more than 32 names.
    """
    if _listening is not None:
        _listening.add(values)


class Recorder:
    """Sums what f logs in one engine."""

    def __init__(self) -> None:
        self._call: dict[str, list[Any]] = {}  # values of the call of f in hand
        self._batch: list[tuple[str, list[Any], int]] = []  # (name, values, vertices) of ended calls of the batch
        self._later: list[tuple[str, list[Any], int]] = []  # of ended batches, whose values are still on a device
        self._sums: dict[str, tuple[float, int]] = {}  # of all others: (sum over vertices, vertices)
        self._before: Recorder | None = None

    def listen(self) -> None:
        """Take what is logged from now on: a batch begins."""
        global _listening
        self._before, _listening = _listening, self

    def end(self, *, failed: bool = False) -> None:
        """The batch has ended; what is logged elsewhere is none of this. What a batch logged that `failed` is dropped,
        as all else that it did."""
        global _listening
        self._before, _listening = None, self._before
        batch, self._batch = self._batch, []
        self._call.clear()
        for name, values, vertices in () if failed else batch:
            if all(isinstance(value, float) for value in values):
                self._sum(name, values, vertices)
            else:
                self._later.append((name, values, vertices))

    def add(self, values: dict[str, Any]) -> None:
        """Take the values of one call of `log`. Raises ProgramError as that does."""
        for name, value in values.items():
            if name not in self._call:
                if not 1 <= len(name) <= LONGEST_LOGGED or not name.isprintable():
                    raise ProgramError(
                        f"gridml.log got the name {printable(repr(name), NAME)}; expected 1 to {LONGEST_LOGGED} "
                        f"characters that print."
                    )
                if len(self._call) == MOST_LOGGED:
                    raise ProgramError(
                        f"gridml.log got {name!r} beside {MOST_LOGGED} other names; expected at most {MOST_LOGGED}. "
                        f"Return what is many from evaluate, which may be lists."
                    )
            self._call.setdefault(name, []).append(_number(name, value))

    def end_call(self, vertices: int) -> None:
        """A call of f for so many vertices has ended."""
        if self._call:
            self._batch += [(name, values, vertices) for name, values in self._call.items()]
            self._call.clear()

    def take(self) -> tuple[Logged, ...]:
        """Return what was logged since this was last asked, and forget it."""
        later, self._later = self._later, []
        come = iter(brought([value for _, values, _ in later for value in values]))
        for name, values, vertices in later:
            self._sum(name, [next(come) for _ in values], vertices)
        sums, self._sums = self._sums, {}
        return tuple(Logged(name, *total) for name, total in sums.items())

    def forget(self) -> None:
        """What was trained since this was last asked is not wanted, nor is what it logged."""
        self._later.clear()
        self._sums.clear()

    def _sum(self, name: str, values: list[float], vertices: int) -> None:
        mean = sum(values) / len(values)
        if not abs(mean) <= LARGEST_LOGGED:  # NaN neither
            return
        if name not in self._sums and len(self._sums) == MOST_LOGGED:
            return  # a push takes no more names along; each call had fewer
        total, before = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + mean * vertices, before + vertices


def _number(name: str, value: Any) -> Any:
    """Return a value as a float, or as a tensor that holds it on a device."""
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        if size != 1:
            raise TypeError(f"{type(value).__name__} of {size:,} numbers")
        device = getattr(getattr(value, "device", None), "type", "cpu")
        if device == "cpu":
            return float(value.item() if hasattr(value, "item") else value)
        return value.detach().clone()  # waiting for the device would stop it after every batch
    except (TypeError, ValueError) as error:
        raise ProgramError(
            f"gridml.log got {name}={printable(repr(value), NAME)} ({error}); expected one number, such as the mean "
            f"over the batch: gridml.log({name}={name}.mean())."
        ) from error
