"""Whether a worker can have trained what it brings, and when it is trusted no more: by the master's clock, and by what
others do. What a worker says of its own speed is no evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SLACK, SLACK_OF_ANY = 10.0, 100.0  # times as fast as the fastest other of its kind of machine, and of any kind
WITNESSES = 2  # others that must be at work, each with
SETTLED = 3  # pushes, before anybody is compared with them
PUSHES = 8  # of a worker that are looked back on,
BLAMED = 3  # so many of which a majority of others would not have brought
UNLIKE = 4.0  # times as often as the others are blamed: where all of them are, the program is to blame


@dataclass(frozen=True)
class Pace:
    """Vertices that a worker was credited in so many seconds since it was first given work, in so many pushes, on a
    machine of some kind."""

    vertices: int
    seconds: float
    pushes: int
    kind: str = ""

    @property
    def rate(self) -> float:
        """Vertices per second."""
        return self.vertices / self.seconds if self.seconds > 0 else 0.0


def too_fast(own: Pace, others: Sequence[Pace]) -> tuple[bool, str]:
    """Whether a worker brings more than any machine like its own can have trained, and why.

    `own` counts the push in question. Before anything is known of two others that are at work nothing is too fast.
    """
    settled = [other for other in others if other.pushes >= SETTLED and other.rate > 0]
    alike = [other for other in settled if other.kind == own.kind]
    for group, slack, whose in ((alike, SLACK, "of its kind"), (settled, SLACK_OF_ANY, "of any kind")):
        if len(group) >= WITNESSES:
            fastest = max(other.rate for other in group)
            if own.vertices > slack * fastest * own.seconds:
                reason = f"{own.vertices:,} vertices in {own.seconds:.3g} s since its first lease, more than"
                return True, f"{reason} {slack:g} times what the fastest other worker {whose} trains"
    return False, "it can have trained that"


def quarantine(blamed: Sequence[bool], others: Sequence[Sequence[bool]]) -> tuple[bool, str]:
    """Whether a worker is trusted no more, given which of its last pushes and of each other worker's were blamed."""
    mine, known = sum(blamed), [each for each in others if each]
    theirs, all_theirs = sum(map(sum, known)), sum(map(len, known))
    if mine < BLAMED or len(known) < WITNESSES:
        return False, f"{mine} of its last {len(blamed)} pushes were blamed"
    if mine * all_theirs < UNLIKE * theirs * len(blamed):
        return False, f"{mine} of its last {len(blamed)} pushes were blamed, and so are those of others"
    return True, f"{mine} of its last {len(blamed)} pushes are not what others bring"
