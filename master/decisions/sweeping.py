"""Which of the runs that have left something with a provider are over, so that it can be removed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remains:
    """What is known of a run that has something there. `host` is where its directory is, and `here` whether that is
    this machine; `driven` says who drives it, None: nobody, as far as can be seen from here. `youngest_s` is for how
    many seconds its youngest instance has been there, None where it has none."""

    run: str
    host: str
    here: bool
    driven: str | None
    youngest_s: float | None


def may_be_swept(remains: Remains, *, named: bool, older_than_s: float) -> tuple[bool, str]:
    """Return whether what a run has left is removed, and why; `named` where a person asked for this very run."""
    if remains.driven is not None:
        return False, f"its master drives it: {remains.driven}"
    if remains.youngest_s is not None and remains.youngest_s < older_than_s:
        return False, f"its youngest instance is {remains.youngest_s:.0f} s old, and {older_than_s:.0f} s are asked for"
    if named:
        return True, "it is asked for by its name"
    if not remains.here:
        return False, f"whether it is over can be seen on {remains.host or 'another machine'} only; name it with --run"
    return True, "no master drives it"
