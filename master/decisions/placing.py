"""Whether the vertices of a run are placed, by which method, on how many parts, and whether that is worth keeping."""

from __future__ import annotations

from dataclasses import dataclass

AUTO, NONE = "auto", "none"
MOST_PARTS = 64  # so that choosing one among them for a worker takes microseconds
SECTIONS = 4  # of a part: more save more bytes where workers push often, and cost more of what is learnt
CHUNKS = 4  # that a part has at least unless a method was asked for: or its worker could not be helped at its end
FEW_BYTES = 1_000_000  # of rows: all of them are sent to a worker in a tenth of a second at 100 Mbit/s
LEAST_SAVED = 0.05  # of the bytes that parts by chance touch
MOST_VERTICES = 2**31 - 1  # that can be placed, and rows that they can touch


@dataclass(frozen=True)
class PlacingFacts:
    """What the placement of a run is decided by.

    `asked` is auto, none or a method's name. The graph has `vertices` that f runs on, with `edges` to `rows` of array
    fields, which have `row_bytes` together; a type of which there is one vertex, or of which all lead to one, does not
    count. A chunk has `chunk` vertices at least, and `fewest` are worth a message. Vertices are
    `shuffled` where an epoch does not keep the graph's order. They may be `connected` with one another, f may leave out
    an epoch's last batch (`drop_last`), and train `modules` besides.
    """

    asked: str
    workers: int
    vertices: int
    edges: int
    rows: int
    row_bytes: int
    chunk: int
    fewest: int
    shuffled: bool = True
    connected: bool = False
    drop_last: bool = False
    modules: bool = False


@dataclass(frozen=True)
class Chosen:
    """The method that places the vertices, on how many parts, and of how many sections each is."""

    method: str
    parts: int
    sections: int


def choose(facts: PlacingFacts) -> tuple[Chosen | None, str]:
    """Return how vertices are placed, None where they are not, and why.

    There are as many parts as workers are asked for, since a part is what one of them keeps, and fewer where parts
    would have too few chunks. A part is divided into sections, unless an epoch keeps the graph's order. A method that
    was asked for by its name is taken wherever it can be.
    """
    if facts.asked == NONE:
        return None, "no placement was asked for"
    if not facts.edges:
        return None, "no vertex leads to rows of arrays of its own"
    if facts.connected:
        return None, "vertices that are connected with one another are not placed"
    if facts.drop_last:
        return None, "with drop_last it would always be vertices of the same part that are left out"
    if max(facts.vertices, facts.rows) > MOST_VERTICES:
        return None, f"no more than {MOST_VERTICES:,} vertices can be placed, and no more rows"
    if facts.workers < 2:
        return None, "one worker trains all of them"
    chunks, several = (CHUNKS, f"{CHUNKS} chunks") if facts.asked == AUTO else (1, "1 chunk")
    parts, least = min(facts.workers, MOST_PARTS), chunks * facts.chunk
    if facts.vertices < 2 * least:
        return None, f"of {facts.vertices:,} vertices there are no two parts with {least:,}, which is {several}"
    reason = "as many as workers" if parts == facts.workers else "as many as there may be"
    if facts.vertices < parts * least:
        parts, reason = facts.vertices // least, f"each with {several} or more"
    sections = max(1, min(SECTIONS, facts.vertices // parts // facts.fewest)) if facts.shuffled else 1
    division = f"{parts} parts, {reason}" if sections == 1 else f"{parts} parts, {reason}, of {sections} sections"
    if facts.asked != AUTO:
        return Chosen(facts.asked, parts, sections), f"{facts.asked} was asked for; {division}"
    if facts.modules:
        return None, "modules are trained besides, each worker's by all kinds of vertices"
    if facts.row_bytes < FEW_BYTES:
        return None, f"all rows together are {facts.row_bytes:,} bytes, which is little to send"
    return Chosen(AUTO, parts, sections), division


def worth_keeping(asked: str, placed_bytes: float, chance_bytes: float) -> tuple[bool, str]:
    """Say whether parts that touch so many bytes of rows are better than parts by chance, and how much."""
    saved = 1 - placed_bytes / chance_bytes if chance_bytes else 0.0
    if asked == AUTO and saved < LEAST_SAVED:
        return False, f"parts would touch only {saved:.0%} fewer bytes of rows than by chance"
    return True, f"{saved:.0%} fewer bytes of rows than by chance"
