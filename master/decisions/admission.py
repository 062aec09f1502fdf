"""Whether a push is merged, was merged before, or is refused; and whether a worker is still heard."""

from __future__ import annotations

from dataclasses import dataclass

from gridml.protocol.messages import Push, Verdict

MOST_MALFORMED = 3  # messages of one worker that make no sense; an honest one sends none


def after_malformed(messages: int) -> tuple[bool, str]:
    """Return whether a worker is still heard that has sent so many messages which make no sense, and why."""
    if messages < MOST_MALFORMED:
        return True, f"{messages} such of at most {MOST_MALFORMED}. Is its gridml another one?"
    return False, f"{messages} of its messages made no sense: it is not heard any more"


@dataclass(frozen=True)
class LeaseFacts:
    """A lease as the ledger has it: credited up to `upto`, after `sequence` pushes; `open` until it ends in any way.

    `worker` may push under it: its holder, or a later attempt of the same job. `untouched`: it has ended, and nobody
    else was given what the push trained.
    """

    worker: str
    term: int
    start: int
    stop: int
    upto: int
    sequence: int
    open: bool
    closed_because: str = ""
    untouched: bool = False


def admit(
    push: Push, worker: str, lease: LeaseFacts | None, *, base_kept: bool, leaves_few: bool = False
) -> tuple[Verdict, str]:
    """Return the verdict on a push, and why. One that `leaves_few` leaves less of its lease than a batch may have.

    Order matters: a repetition of the last push is recognised even after its lease has ended, since the answer to it
    may have been lost; everything else is fenced by the lease's term before its content is looked at. Work of an ended
    lease that nobody else was given is merged all the same.
    """
    if lease is None:
        return Verdict.REFUSED, f"there is no lease {push.lease}"
    if worker != lease.worker or push.term != lease.term:
        return Verdict.REFUSED, f"lease {push.lease} is now held by {lease.worker} in term {lease.term}"
    if push.sequence == lease.sequence and push.upto == lease.upto and push.sequence > 0:
        return Verdict.REPEATED, f"push {push.sequence} of lease {push.lease} was merged before"
    if not lease.open and not lease.untouched:
        return Verdict.REFUSED, f"lease {push.lease} has ended: {lease.closed_because}"
    if push.sequence != lease.sequence + 1:
        return Verdict.REFUSED, f"push {push.sequence} came, expected {lease.sequence + 1}"
    if not lease.upto < push.upto <= lease.stop or push.vertices != push.upto - lease.upto:
        return (
            Verdict.REFUSED,
            f"a push of {push.vertices} vertices up to {push.upto} does not continue [{lease.upto}, {lease.stop})",
        )
    if leaves_few:  # it was cut meanwhile, elsewhere than its worker's batches end
        return Verdict.REFUSED, f"what it leaves of [{lease.upto}, {lease.stop}) is too few for a batch"
    if not base_kept:
        return Verdict.REFUSED, f"version {push.base}, from which it was trained, is not kept any more"
    return Verdict.MERGED, "continues its lease" if lease.open else "its lease has ended, and nobody else has its work"
