"""Text as arrays of numbers: machine code that looks at each byte once.

Every function is given whole lines, so it need not look where the text ends. Where something is wrong it returns where,
and which of the mistakes below it is; otherwise −1 and OK. All of them are in one file, because numba looks for changes
only in the file of the function that it kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.bipartite import MOST
from gridml.placement.compiled import compiled

Ids = NDArray[np.int32]
Numbers = NDArray[np.int64]
Text = NDArray[np.uint8]

OK, LABEL, PAIR, INDEX, VALUE, NUMBER, TOO_LARGE, TOO_LONG, TOO_MANY = range(9)

LARGEST = 2**63 - 1  # stands for all whole numbers that are as large, or larger
_SAFE = (LARGEST - 9) // 10  # any digit more fits
TAB, NEWLINE, RETURN, SPACE, HASH, PERCENT, PLUS, COMMA, MINUS, POINT, ZERO, NINE, COLON = b"\t\n\r #%+,-.09:"


@compiled
def libsvm(text: Text, ends: Numbers, columns: Ids) -> tuple[int, int, int, int]:
    """Read `label index:value ...` a line: `columns`, from 0, of the rows, and where in them each row ends.

    Returns rows, edges, where something is wrong, and what. Blank lines, and those that are comments, are no rows.
    """
    at, rows, edges = 0, 0, 0
    while at < len(text):
        begin = _past_blanks(text, at)
        indented, at = begin > at, begin
        if text[at] != NEWLINE and text[at] != HASH:
            # A line may have several labels, and, if it is indented, none.
            if not (indented and text[_past_whole(text, at)] == COLON):
                while True:
                    after = _past_number(text, at)
                    if after == at:
                        return rows, edges, begin, LABEL
                    at = after
                    if text[at] != COMMA:
                        break
                    at += 1
                if not _separates(text[at]):
                    return rows, edges, begin, LABEL
            at = _past_blanks(text, at)
            while text[at] != NEWLINE and text[at] != HASH:
                begin = at
                if text[at] == 113 and text[at + 1] == 105 and text[at + 2] == 100 and text[at + 3] == COLON:  # qid:
                    at += 3
                else:
                    at = _past_whole(text, at)
                    index = _whole(text, begin, at)
                    if at == begin or text[at] != COLON:
                        return rows, edges, begin, PAIR
                    if not 1 <= index <= MOST:
                        return rows, edges, begin, INDEX
                    columns[edges] = index - 1
                    edges += 1
                after = _past_number(text, at + 1)
                if after == at + 1 or not _separates(text[after]):
                    return rows, edges, begin, VALUE
                at = _past_blanks(text, after)
            ends[rows] = edges
            rows += 1
        at = past_line(text, at)
    return rows, edges, -1, OK


@compiled
def pairs(text: Text, first: Numbers, second: Numbers) -> tuple[int, int, int]:
    """Read the first two whole numbers of each line that is neither blank nor a comment; what follows is not looked at.

    Returns how many lines there are, where something is wrong, and what.
    """
    at, count = 0, 0
    while at < len(text):
        at = _past_blanks(text, at)
        if text[at] != NEWLINE and text[at] != HASH and text[at] != PERCENT:
            for place in range(2):
                begin, at = at, _past_whole(text, at)
                if at == begin or not (_separates(text[at]) or text[at] == COMMA):
                    return count, begin, NUMBER
                number = _whole(text, begin, at)
                if not -LARGEST < number < LARGEST:
                    return count, begin, TOO_LARGE
                if place == 0:
                    first[count] = number
                else:
                    second[count] = number
                at = _past_blanks(text, at)
                if place == 0 and text[at] == COMMA:
                    at = _past_blanks(text, at + 1)
            count += 1
        at = past_line(text, at)
    return count, -1, OK


@compiled
def coordinates(
    text: Text, at: int, entries: int, rows: int, columns: int, valued: bool, first: Ids, second: Ids
) -> tuple[int, int, int]:
    """Read up to `entries` lines of a row and a column, from 1 to `rows` and `columns`, as numbers from 0, and of a
    value if they are `valued`; lines that are blank or comments are passed over, and more lines are a mistake.

    Returns how many lines there are, where something is wrong, and what.
    """
    count = 0
    while at < len(text):
        at = _past_blanks(text, at)
        if text[at] != NEWLINE and text[at] != PERCENT:
            if count == entries:
                return count, at, TOO_MANY
            for place in range(2):
                begin, at = at, _past_whole(text, at)
                if at == begin or not _separates(text[at]):
                    return count, begin, NUMBER
                number = _whole(text, begin, at)
                if not 1 <= number <= (columns if place else rows):
                    return count, begin, INDEX
                if place:
                    second[count] = number - 1
                else:
                    first[count] = number - 1
                at = _past_blanks(text, at)
            if valued:
                begin, at = at, _past_number(text, at)
                if at == begin or not _separates(text[at]):
                    return count, begin, VALUE
                at = _past_blanks(text, at)
            if text[at] != NEWLINE:
                return count, at, TOO_LONG
            count += 1
        at = past_line(text, at)
    return count, -1, OK


@compiled
def pins(text: Text, at: int, lines: int, vertices: int, ends: Numbers, numbers: Ids) -> tuple[int, int, int, int]:
    """Read the whole numbers, from 1 to `vertices`, of each of up to `lines` lines, as `numbers` from 0; a blank line
    has none, comments are passed over, and more lines are a mistake.

    Returns lines, numbers, where something is wrong, and what.
    """
    count, used = 0, 0
    while at < len(text):
        at = _past_blanks(text, at)
        if text[at] == PERCENT:
            at = past_line(text, at)
            continue
        if count == lines:
            if text[at] != NEWLINE:
                return count, used, at, TOO_MANY
            at += 1
            continue
        while text[at] != NEWLINE:
            begin, at = at, _past_whole(text, at)
            if at == begin or not _separates(text[at]):
                return count, used, begin, NUMBER
            number = _whole(text, begin, at)
            if not 1 <= number <= vertices:
                return count, used, begin, INDEX
            numbers[used] = number - 1
            used += 1
            at = _past_blanks(text, at)
        ends[count] = used
        count += 1
        at += 1
    return count, used, -1, OK


@compiled
def _separates(byte: int) -> bool:
    return byte in (SPACE, NEWLINE, TAB, RETURN)


@compiled
def _past_blanks(text: Text, at: int) -> int:
    while text[at] == SPACE or text[at] == TAB or text[at] == RETURN:
        at += 1
    return at


@compiled
def past_line(text: Text, at: int) -> int:
    """Return where the line after that of byte `at` begins. The text ends with the end of a line."""
    while text[at] != NEWLINE:
        at += 1
    return at + 1


@compiled
def _past_digits(text: Text, at: int) -> int:
    while ZERO <= text[at] <= NINE:
        at += 1
    return at


@compiled
def _past_whole(text: Text, at: int) -> int:
    """Where the whole number ends that begins here; `at` itself if none does."""
    begin = at + 1 if text[at] == MINUS else at
    end = _past_digits(text, begin)
    return end if end > begin else at


@compiled
def _whole(text: Text, begin: int, end: int) -> int:
    """The whole number that stands there; LARGEST, or −LARGEST, for one that has too many digits."""
    value = 0
    negative = text[begin] == MINUS
    for at in range(begin + 1 if negative else begin, end):
        digit = int(text[at]) - ZERO
        if value > _SAFE and value > (LARGEST - digit) // 10:
            value = LARGEST
            break
        value = value * 10 + digit
    return -value if negative else value


@compiled
def _past_number(text: Text, at: int) -> int:
    """Where the decimal number ends that begins here, such as −1.5e3; `at` itself if none does."""
    begin = at + 1 if text[at] == MINUS or text[at] == PLUS else at
    end = _past_digits(text, begin)
    digits = end - begin
    if text[end] == POINT:
        after = _past_digits(text, end + 1)
        digits += after - end - 1
        end = after
    if not digits:
        return at
    if text[end] == 101 or text[end] == 69:  # e, E
        power = end + 2 if text[end + 1] == MINUS or text[end + 1] == PLUS else end + 1
        after = _past_digits(text, power)
        if after == power:
            return at
        end = after
    return end
