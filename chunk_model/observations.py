"""Observed lives: the duration of each, and whether it ended or was right-censored."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chunk_model.lifetime import MAX_DURATION_S, Floats
from chunk_model.traces import Life, UnreadableError, shown, text_of

_TICK_S = 1e-6  # shorter lives count as lives of 0 s, because clocks do not resolve them
_ENDED = {"1": True, "true": True, "0": False, "false": False}


class ObservationError(ValueError):
    """Observations are missing, or a row is invalid; the message names the row."""


@dataclass(frozen=True, eq=False)
class Observations:
    """n observed lives. Sequences are converted to arrays.

    Raises ObservationError unless the arrays are one-dimensional, of one length and finite, and every duration is at
    least 0.
    """

    duration_s: Floats  #: [n] seconds that each life lasted, or has lasted so far
    ended: NDArray[np.bool_]  #: [n] False: right-censored
    #: [n] time at which each life ended or was last seen; lives that end in one mass eviction have the same time
    end_at_s: Floats | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "duration_s", np.asarray(self.duration_s, np.float64))
        object.__setattr__(self, "ended", np.asarray(self.ended, np.bool_))
        if self.end_at_s is not None:
            object.__setattr__(self, "end_at_s", np.asarray(self.end_at_s, np.float64))
        if self.duration_s.ndim != 1:
            raise ObservationError(
                f"durations must be one row of numbers, got an array of shape {self.duration_s.shape}"
            )
        for name, values in (("ended", self.ended), ("end_at_s", self.end_at_s)):
            if values is not None and values.shape != self.duration_s.shape:
                got = f"{values.shape} and {self.duration_s.shape}"
                raise ObservationError(f"{name} and duration_s must be of one length, got the shapes {got}")
        _check(self.duration_s, "duration_s", "a finite number of seconds, at least 0", self.duration_s >= 0)
        if self.end_at_s is not None:
            _check(self.end_at_s, "end_at_s", "a finite number of seconds")

    @classmethod
    def of(cls, lives: Iterable[Life], end_s: float | None = None) -> Self:
        """Return the observations of `lives` at the time `end_s` (default: the last start or end among them).

        Lives that have not ended by `end_s` are censored, or left out if they have not started before `end_s`. Raises
        ObservationError if no life is left.
        """
        lives = list(lives)
        if end_s is None:
            end_s = max((life.start_s if life.end_s is None else life.end_s for life in lives), default=0.0)
        # A life that ended after 0 s is an observation. A life that begins at `end_s` shows nothing yet.
        seen = [life for life in lives if life.start_s < end_s or (life.end_s is not None and life.end_s <= end_s)]
        if not seen:
            raise ObservationError(
                f"none of {len(lives)} lives starts before {end_s} s: give a trace with lives, or a later end"
            )
        start = np.array([life.start_s for life in seen])
        ended = np.array([life.end_s is not None and life.end_s <= end_s for life in seen])
        end = np.array([end_s if life.end_s is None else min(life.end_s, end_s) for life in seen])
        return cls(end - start, ended, end)

    def __len__(self) -> int:
        return len(self.duration_s)

    @property
    def deaths(self) -> int:
        """The number of lives that ended."""
        return int(np.count_nonzero(self.ended))

    @property
    def exposure_s(self) -> float:
        """Observed seconds of all lives together."""
        return float(np.sum(self.duration_s))

    @property
    def independent_deaths(self) -> int:
        """The number of distinct times of death, so that an eviction that ends many lives counts once. If the times are
        unknown, the number of deaths."""
        return self.deaths if self.end_at_s is None else len(np.unique(self.end_at_s[self.ended]))

    def groups(self) -> NDArray[np.intp]:
        """Return the group of each life, [n], counted from 0. Lives that ended at the same time are one group."""
        alone = np.arange(len(self))
        if self.end_at_s is None:
            return alone
        of_death = np.unique(self.end_at_s, return_inverse=True)[1]
        # Each survivor is a group of its own, with a number above the numbers of the groups of deaths.
        return np.unique(np.where(self.ended, of_death, len(self) + alone), return_inverse=True)[1]

    def members(self) -> list[NDArray[np.intp]]:
        """Return the indices of the lives of each of `groups`, for resampling."""
        groups = self.groups()
        return np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1])

    def take(self, index: ArrayLike) -> Observations:
        """Return the lives selected by `index` (indices, which can repeat, or a mask)."""
        chosen = np.asarray(index)
        end_at_s = None if self.end_at_s is None else self.end_at_s[chosen]
        return Observations(self.duration_s[chosen], self.ended[chosen], end_at_s)

    def positive(self) -> Observations:
        """Return the lives with each duration of 0 replaced by half the shortest positive duration, because densities
        can be infinite at 0."""
        positive = self.duration_s >= _TICK_S
        if bool(np.all(positive)):
            return self
        shortest = float(np.min(self.duration_s[positive])) / 2 if np.any(positive) else _TICK_S
        return Observations(np.where(positive, self.duration_s, shortest), self.ended, self.end_at_s)


def read_csv(path: Path) -> Observations:
    """Read lives from a file with a header and the columns `duration_s`, `ended` (1, 0, true, false).

    The column `end_at_s` (seconds) is optional. Other columns and blank lines are ignored. Raises OSError if the file
    cannot be read, ObservationError (with file and line) if it is invalid.
    """
    try:
        with io.StringIO(text_of(path), newline="") as file:
            return _read(csv.reader(file), str(path))
    except UnreadableError as error:
        raise ObservationError(str(error)) from None
    except csv.Error as error:
        raise ObservationError(f"{path} cannot be read as CSV: {error}") from None


def _read(rows: Iterator[list[str]], source: str) -> Observations:
    header = [name.strip() for name in next(rows, [])]
    missing = [name for name in ("duration_s", "ended") if name not in header]
    if missing:
        got = f"the columns {shown(','.join(header))}" if header else "nothing"
        raise ObservationError(f"{source}, line 1: expected the columns duration_s,ended, got {got}")
    if len(set(header)) < len(header):
        raise ObservationError(f"{source}, line 1: got a column twice ({shown(','.join(header))}); expected each once")
    durations: list[float] = []
    ended: list[bool] = []
    moments: list[float] | None = [] if "end_at_s" in header else None
    for number, row in enumerate(rows, 2):
        if not "".join(row).strip():
            continue
        where = f"{source}, line {number}"
        if len(row) != len(header):
            raise ObservationError(
                f"{where}: got {len(row)} fields, expected {len(header)} ({shown(','.join(header))})"
            )
        field = dict(zip(header, (value.strip() for value in row), strict=True))
        durations.append(_seconds(field["duration_s"], f"{where}: duration_s", least=0.0))
        if (state := _ENDED.get(field["ended"].lower())) is None:
            raise ObservationError(f"{where}: ended must be 1, 0, true or false, got {shown(field['ended'])}")
        ended.append(state)
        if moments is not None:
            moments.append(_seconds(field["end_at_s"], f"{where}: end_at_s", least=-MAX_DURATION_S))
    if not durations:
        raise ObservationError(f"{source} has a header and no lives: add a line such as 2700,1 for each life")
    return Observations(np.array(durations), np.array(ended), None if moments is None else np.array(moments))


def _seconds(text: str, where: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not least <= value <= MAX_DURATION_S:
        wanted = "a number of seconds, at least 0" if least == 0 else "a number of seconds"
        wanted += f" and at most {MAX_DURATION_S:g}" if MAX_DURATION_S < value < np.inf else ""
        raise ObservationError(f"{where} must be {wanted}, got {shown(text)}")
    return value


def _check(values: Floats, name: str, wanted: str, sound: NDArray[np.bool_] | None = None) -> None:
    good = np.isfinite(values) if sound is None else np.isfinite(values) & sound
    if not bool(np.all(good)):
        row = int(np.argmin(good))
        raise ObservationError(f"{name}[{row}] must be {wanted}, got {values[row]}")
