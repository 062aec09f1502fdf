"""Text as arrays of numbers: machine code that looks at each byte once.

Every function is given whole lines that end with a newline and nothing else (`text` sees to that), so it need not look
where the text ends. Where something is wrong it returns where, and which of the mistakes below it is; otherwise −1 and
OK. Values are not used: they may be any number as C, Fortran or Python write it, and what is not finite. All functions
are in one file, because numba looks for changes only in the file of the function that it kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.placement.bipartite import MAX_COUNT
from gridml.placement.compiled import compiled

Ids = NDArray[np.int32]
Numbers = NDArray[np.int64]
Text = NDArray[np.uint8]

OK, LABEL, PAIR, INDEX, VALUE, NUMBER, TOO_LARGE, TOO_LONG, TOO_MANY, MORE, FEWER = range(11)

LARGEST = 2**63 - 1  # stands for all whole numbers that are as large, or larger
_SAFE = (LARGEST - 9) // 10  # any digit more fits
TAB, NEWLINE, SPACE, HASH, PERCENT, BRACKET, STAR, PLUS, COMMA, MINUS, POINT, ZERO, NINE, COLON = b"\t\n #%(*+,-.09:"
OPEN, CLOSE = b"{}"
_LOWER = 0x20  # makes a letter small


def _letters(word: bytes) -> int:
    """A word as a number, small and capital letters alike."""
    return sum((letter & 31) * 32**place for place, letter in enumerate(reversed(word)))


_NAN, _NA, _INF, _INFINITY = (_letters(word) for word in (b"nan", b"na", b"inf", b"infinity"))


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
            if not (indented and text[_past_blanks(text, _past_whole(text, at))] == COLON):
                while True:
                    after = _past_value(text, at)
                    if after == at:
                        return rows, edges, begin, LABEL
                    at = after
                    if text[at] != COMMA:
                        break
                    at += 1
                if not (_separates(text[at]) or text[at] == HASH):
                    return rows, edges, begin, LABEL
            at = _past_blanks(text, at)
            while text[at] != NEWLINE and text[at] != HASH:
                begin = at
                if text[at] == 113 and text[at + 1] == 105 and text[at + 2] == 100 and text[at + 3] == COLON:  # qid:
                    at += 3
                else:
                    at = _past_whole(text, at)
                    index = _whole(text, begin, at)
                    missing, at = at == begin, _past_blanks(text, at)
                    if missing or text[at] != COLON:
                        return rows, edges, begin, PAIR
                    if not 1 <= index <= MAX_COUNT:
                        return rows, edges, begin, INDEX
                    columns[edges] = index - 1
                    edges += 1
                at = _past_blanks(text, at + 1)
                after = _past_value(text, at)
                if after == at or not (_separates(text[after]) or text[after] == HASH):
                    return rows, edges, begin, VALUE
                at = _past_blanks(text, after)
            ends[rows] = edges
            rows += 1
        at = past_line(text, at)
    return rows, edges, -1, OK


@compiled
def pairs(text: Text, width: int, first: Numbers, second: Numbers) -> tuple[int, int, int, int]:
    """Read the two whole numbers of each line that is neither blank nor a comment. There may be a third column,
    whatever is in it, if all lines have it: `width` is how many the lines before had, 0 if there were none.

    Returns how many lines there are, their width, where something is wrong, and what.
    """
    at, count = 0, 0
    while at < len(text):
        at = _past_blanks(text, at)
        if not _ends_fields(text[at]):
            for place in range(2):
                begin, at = at, _past_whole(text, at)
                if at == begin or not (_separates(text[at]) or text[at] == COMMA or _ends_fields(text[at])):
                    return count, width, begin, NUMBER
                number = _whole(text, begin, at)
                if not -LARGEST < number < LARGEST:
                    return count, width, begin, TOO_LARGE
                if place == 0:
                    first[count] = number
                else:
                    second[count] = number
                at = _past_blanks(text, at)
                comma = text[at] == COMMA
                if comma:
                    at = _past_blanks(text, at + 1)
            columns, begin = 2, at
            if comma or not _ends_fields(text[at]):
                columns = 3
                at = _past_third(text, at)
                if not _ends_fields(text[at]):
                    return count, width, at, TOO_LONG
            if columns != width:
                if width:
                    return count, width, begin, MORE if columns > width else FEWER
                width = columns
            count += 1
        at = past_line(text, at)
    return count, width, -1, OK


@compiled
def _past_third(text: Text, at: int) -> int:
    """Where the column ends that begins here, and the empty ones after it: a word, or what networkx writes of an edge,
    which is a dict of Python's up to the line's end."""
    if text[at] == OPEN:
        end = past_line(text, at) - 1
        while _separates(text[end]):
            end -= 1
        if text[end] == CLOSE:
            return past_line(text, at) - 1
    while not (_separates(text[at]) or text[at] == COMMA or _ends_fields(text[at])):
        at += 1
    while text[at] == COMMA or text[at] == SPACE or text[at] == TAB:
        at += 1
    return at


@compiled
def _ends_fields(byte: int) -> bool:
    return byte in (NEWLINE, HASH, PERCENT)


@compiled
def coordinates(
    text: Text, at: int, entries: int, rows: int, columns: int, values: int, first: Ids, second: Ids
) -> tuple[int, int, int]:
    """Read up to `entries` lines of a row and a column, from 1 to `rows` and `columns`, as numbers from 0, and of so
    many `values`; lines that are blank or comments are passed over, and more lines are a mistake.

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
            for _ in range(values):
                begin, at = at, _past_value(text, at)
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
    return byte in (SPACE, NEWLINE, TAB)


@compiled
def _past_blanks(text: Text, at: int) -> int:
    while text[at] == SPACE or text[at] == TAB:
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
def _past_value(text: Text, at: int) -> int:
    """Where the value ends that begins here; `at` itself if none does."""
    end = _past_number(text, at)
    if end > at and text[end] != HASH and text[end] | _LOWER != 120:  # x
        return end
    begin = at + 1 if text[at] == MINUS or text[at] == PLUS else at
    if end > at:
        if text[end] == HASH:  # 1.#INF, 1.#QNAN: as Microsoft's C wrote them
            what = text[end + 1]
            if text[end - 1] == POINT and (what == 73 or what == 74 or what == 81 or what == 83):  # I, J, Q, S
                return _past_alphanumeric(text, end + 1)
            return end
        return _past_hexadecimal(text, end + 1) if end == begin + 1 and text[begin] == ZERO else end
    if text[begin] == STAR:  # Fortran's for what its field is too narrow for
        while text[begin] == STAR:
            begin += 1
        return begin
    end, letters = begin, 0
    while 97 <= text[end] | _LOWER <= 122 and end < begin + 8:
        letters = letters * 32 + (text[end] & 31)
        end += 1
    if letters in (_INF, _INFINITY, _NA):
        return end
    if letters != _NAN:
        return at
    if text[end] == BRACKET:  # nan(ind), nan(0x1)
        after = _past_alphanumeric(text, end + 1)
        if text[after] == BRACKET + 1:
            return after + 1
    return end


@compiled
def _past_alphanumeric(text: Text, at: int) -> int:
    while ZERO <= text[at] <= NINE or 97 <= text[at] | _LOWER <= 122 or text[at] == 95:  # _
        at += 1
    return at


@compiled
def _past_hexadecimal(text: Text, at: int) -> int:
    """Where a number ends of which 0x was read, such as 0x1.8p3; before the x if nothing follows."""
    begin = at
    while ZERO <= text[at] <= NINE or 97 <= text[at] | _LOWER <= 102 or text[at] == POINT:
        at += 1
    if at == begin:
        return at - 1
    if text[at] | _LOWER == 112:  # p
        power = at + 2 if text[at + 1] == MINUS or text[at + 1] == PLUS else at + 1
        after = _past_digits(text, power)
        return after if after > power else begin - 1
    return at


@compiled
def _past_number(text: Text, at: int) -> int:
    """Where the decimal number ends that begins here, such as −1.5e3, or Fortran's 1.5D+03 and 1.5-103; `at` itself if
    none does."""
    begin = at + 1 if text[at] == MINUS or text[at] == PLUS else at
    end = _past_digits(text, begin)
    digits = end - begin
    pointed = text[end] == POINT
    if pointed:
        after = _past_digits(text, end + 1)
        digits += after - end - 1
        end = after
    if not digits:
        return at
    letter = text[end] | _LOWER
    if letter == 101 or letter == 100 or letter == 113:  # e, d, q
        power = end + 2 if text[end + 1] == MINUS or text[end + 1] == PLUS else end + 1
        after = _past_digits(text, power)
        if after == power:
            return at
        end = after
    elif pointed and (text[end] == MINUS or text[end] == PLUS):
        after = _past_digits(text, end + 1)
        if after > end + 1:
            end = after
    return end
