"""Ranges that are meant for certain workers, and what those begin from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gridml.protocol.messages import Pace, Sync
from gridml.protocol.push import ReplicaPart
from master.decisions.leasing import Span
from master.records import LeaseState, WorkerRecord


@dataclass(frozen=True)
class Start:
    """What a worker trains afresh from: a version, all of it that the lease touches, and the pace to keep."""

    version: int
    replica: ReplicaPart
    pace: Pace


class Appointments(Protocol):
    """Says who is to train what; where it says nothing, leases are granted as ever."""

    def choose(self, record: WorkerRecord, sync: Sync) -> tuple[Span | None, str] | None:
        """Return (the span that a worker is to lease next, None where it is to get nothing yet; why); None where
        nothing is meant for it."""

    def start(self, lease: LeaseState | None) -> Start | None:
        """Return what a lease begins from; None where it goes on from what its worker has."""


class Anybody:
    """Everybody may train everything, from what they have."""

    def choose(self, record: WorkerRecord, sync: Sync) -> tuple[Span | None, str] | None:
        return None

    def start(self, lease: LeaseState | None) -> Start | None:
        return None
