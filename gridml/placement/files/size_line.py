"""The line of a file that says how large its graph is."""

from __future__ import annotations

from gridml.placement.bipartite import MOST
from gridml.placement.files import scan
from gridml.placement.files.source import Block, Source

_LONGEST = 1000  # bytes of such a line that are looked at


def size_line(
    source: Source, block: Block, at: int, counts: tuple[int, ...], expected: str
) -> tuple[int, list[int] | None]:
    """Return where the first line ends that is neither blank nor a comment (%), and its whole numbers, as many as one
    of `counts`; None where the block has no such line. Raises UsageError for other lines, and too large a graph."""
    while at < len(block.text):
        end = scan.past_line(block.text, at)
        words = bytes(block.text[at : min(end, at + _LONGEST)]).split()
        if words and not words[0].startswith(b"%"):
            numbers = [int(word) for word in words if word.isdigit() and len(word) < 19]
            if len(numbers) != len(words) or len(words) not in counts or max(numbers[:2]) > MOST:
                shown = " ".join(block.shown(word) for word in words[:4])
                raise source.wrong(f"got {shown!r}; expected {expected}", block.line(at))
            return end, numbers
        at = end
    return at, None
