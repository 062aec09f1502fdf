"""Compiled loops that find columns, numbers and ids in text, reading each byte once.

Each is given whole lines that end with a newline (`source` ensures that). A column is a range of the text. Positions of
mistakes are returned with their kind, or −1 and OK. All functions are in this one file, because numba's cache only
checks the file of the cached function for changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled

Text = NDArray[np.uint8]
Places = NDArray[np.int32]
Array = NDArray[Any]

# The kinds of mistakes; OK stands for none.
OK, COLUMNS, QUOTE = range(3)
TAB, NEWLINE, SPACE, HASH, PERCENT, PLUS, MINUS, POINT, ZERO, NINE, QUOTES = b'\t\n #%+-.09"'
_LOWER = 0x20  # the bit that makes an ASCII letter lower case
POWERS = np.array([10.0**power for power in range(23)])  # those that float64 holds exactly
_EXACT = 2**53  # integers below are exact in float64


@compiled
def split(
    text: Text, delimiter: int, wanted: NDArray[np.int64], width: int, starts: Places, ends: Places
) -> tuple[int, int, int]:
    """Find the columns `wanted` (k,) of each line; write where they start and end into `starts` and `ends` (lines, k).
    With the delimiter SPACE, columns are separated by any number of blanks. A column may be quoted. A line has `width`
    columns, or any number that has those wanted if `width` is 0. Blank lines and comments are skipped.

    Return the number of lines, the position of a mistake, and its kind.
    """
    at, count = 0, 0
    while at < len(text):
        at = _past_blanks(text, at, delimiter)
        if text[at] == NEWLINE or text[at] == HASH or text[at] == PERCENT:
            at = _past_line(text, at)
            continue
        begin, column, found = at, 0, 0
        while True:
            start = at
            if text[at] == QUOTES:
                at += 1
                while text[at] != QUOTES and text[at] != NEWLINE:
                    at += 1
                end = at
                at = _past_blanks(text, at + 1, delimiter) if text[at] == QUOTES else at
                if text[end] != QUOTES or not (text[at] == delimiter or text[at] == NEWLINE or delimiter == SPACE):
                    return count, start, QUOTE
                start += 1
            else:
                while text[at] != NEWLINE and not (text[at] == delimiter or (delimiter == SPACE and text[at] == TAB)):
                    at += 1
                end = at
                while end > start and (text[end - 1] == SPACE or text[end - 1] == TAB):
                    end -= 1
            for k in range(len(wanted)):
                if wanted[k] == column:
                    starts[count, k], ends[count, k] = start, end
                    found += 1
            column += 1
            at = _past_blanks(text, at, delimiter)
            if text[at] == NEWLINE:
                break
            if delimiter != SPACE:
                at = _past_blanks(text, at + 1, delimiter)
        if found < len(wanted) or (width and column != width):
            return count, begin, COLUMNS
        count += 1
        at += 1
    return count, -1, OK


@compiled
def numbers(text: Text, starts: Array, ends: Array, powers: Array, out: Array, odd: Array) -> int:
    """Parse decimal numbers, whose value in float64 one multiplication or division of exact numbers gives (Clinger,
    "How to read floating point numbers accurately", PLDI 1990), into `out`. Write the positions of all others into
    `odd`, and return their number: these are long, or no numbers."""
    count = 0
    for i in range(len(starts)):
        at, end = starts[i], ends[i]
        negative = at < end and text[at] == MINUS
        at = at + 1 if at < end and (text[at] == MINUS or text[at] == PLUS) else at
        whole, digits, scale, pointed = 0, 0, 0, False
        while at < end and whole < _EXACT:
            if ZERO <= text[at] <= NINE:
                whole = whole * 10 + (int(text[at]) - ZERO)
                digits += 1
                scale -= pointed
            elif text[at] == POINT and not pointed:
                pointed = True
            else:
                break
            at += 1
        if digits and at < end and text[at] | _LOWER == 101:  # e
            at += 1
            down = at < end and text[at] == MINUS
            at = at + 1 if at < end and (text[at] == MINUS or text[at] == PLUS) else at
            power, digits = 0, 0
            while at < end and ZERO <= text[at] <= NINE and power < 1000:
                power = power * 10 + (int(text[at]) - ZERO)
                digits += 1
                at += 1
            scale += -power if down else power
        if at < end or not digits or whole >= _EXACT or not -len(powers) < scale < len(powers):
            odd[count] = i
            count += 1
            continue
        value = float(whole) / powers[-scale] if scale < 0 else float(whole) * powers[scale]
        out[i] = -value if negative else value
    return count


@compiled
def intern(
    text: Text,
    starts: Array,
    ends: Array,
    arena: Text,
    offsets: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    count: int,
    slots: NDArray[np.int64],
    out: Array,
) -> int:
    """Number words in the order in which they first occur: write the number of each into `out`. Word i is
    `arena[offsets[i]:offsets[i + 1]]`; `slots`, a power of two of them, is a hash table with linear probing (FNV-1a).
    All arrays must have room for new words. Return the number of words so far."""
    mask = np.uint64(len(slots) - 1)
    for i in range(len(starts)):
        start, end = starts[i], ends[i]
        code = np.uint64(14695981039346656037)
        for at in range(start, end):
            code = (code ^ np.uint64(text[at])) * np.uint64(1099511628211)
        slot = code & mask
        while True:
            word = slots[slot]
            if word < 0:
                begin = offsets[count]
                for at in range(start, end):
                    arena[begin + at - start] = text[at]
                offsets[count + 1] = begin + end - start
                hashes[count] = code
                slots[slot] = count
                out[i] = count
                count += 1
                break
            begin = offsets[word]
            if hashes[word] == code and offsets[word + 1] - begin == end - start:
                same = True
                for at in range(start, end):
                    if arena[begin + at - start] != text[at]:
                        same = False
                        break
                if same:
                    out[i] = word
                    break
            slot = (slot + np.uint64(1)) & mask
    return count


@compiled
def rehash(hashes: NDArray[np.uint64], count: int, slots: NDArray[np.int64]) -> None:
    """Put the first `count` words into empty slots (-1)."""
    mask = np.uint64(len(slots) - 1)
    for word in range(count):
        slot = hashes[word] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = word


@compiled
def spread(arena: Text, offsets: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Write each word into a row of `out` (words, longest), which is filled with 0."""
    for word in range(len(out)):
        begin = offsets[word]
        for at in range(offsets[word + 1] - begin):
            out[word, at] = arena[begin + at]


@compiled
def _past_blanks(text: Text, at: int, delimiter: int) -> int:
    """Return the position after blanks, of which none is the delimiter itself unless that is SPACE."""
    while text[at] == SPACE or (text[at] == TAB and delimiter != TAB):
        at += 1
    return at


@compiled
def _past_line(text: Text, at: int) -> int:
    while text[at] != NEWLINE:
        at += 1
    return at + 1
