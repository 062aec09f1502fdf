"""The names of devices: what `--device` and `gridml.module(..., device=...)` take. Whether there is one is another
question (`gridml.engine.devices`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gridml.errors import UsageError
from gridml.protocol.text import printable

AUTO, CPU, CUDA = "auto", "cpu", "cuda"
OTHER = "privateuseone"  # torch's own name for the device that a package beside torch brings
NUMBERED = (CUDA, OTHER)
EXPECTED = "auto, cpu, cuda, or cuda:N with the number of a GPU from 0 on"
MOST = 1024  # GPUs of a machine
_NAME = re.compile(r"(?P<kind>[a-z]+)(:(?P<index>0|[1-9][0-9]{0,8}))?")


class DeviceName(NamedTuple):
    """A device as it was asked for: `auto`, `cpu`, or a kind of accelerator with the `number` of one of them (None: any
    of them)."""

    kind: str
    number: int | None = None

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number}"

    @property
    def accelerates(self) -> bool:
        """Whether only an accelerator will do."""
        return self.kind in NUMBERED


def parse(text: object, what: str = "--device") -> DeviceName:
    """Return the device that a text names. Raises UsageError, calling it `what`, for one that names none."""
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    kind, index = (match["kind"], match["index"]) if match else ("", None)
    if kind in (AUTO, CPU, *NUMBERED) and (index is None or (kind in NUMBERED and int(index) < MOST)):
        return DeviceName(kind, None if index is None else int(index))
    raise UsageError(f"{what} is {printable(repr(text), 100)}; expected {EXPECTED}.")
