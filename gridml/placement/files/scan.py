"""Parsers of graph text formats: compiled loops that read each byte once.

Each parser is given whole lines that end with a newline (`source` ensures that), so it never checks for the end of the
text. It returns the position of the first mistake and its kind, or −1 and OK. The values of entries are checked but not
returned: they can be any number that C, Fortran or Python writes, including infinity and NaN. All functions are in this
one file, because numba's cache only checks the file of the cached function for changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gridml.codegen.compiled import compiled
from gridml.placement.bipartite import MAX_COUNT

Ids = NDArray[np.int32]
Numbers = NDArray[np.int64]
Text = NDArray[np.uint8]
Places = NDArray[np.int32]  # (n, 2) where each piece of the text starts and ends

# The kinds of mistakes; OK stands for none.
OK, LABEL, PAIR, INDEX, VALUE, NUMBER, TOO_LARGE, TOO_LONG, TOO_MANY, MORE, FEWER = range(11)

LARGEST = 2**63 - 1  # also stands for all larger integers
_SAFE = (LARGEST - 9) // 10  # numbers up to here cannot overflow when a digit is appended
TAB, NEWLINE, SPACE, HASH, PERCENT, BRACKET, STAR, PLUS, COMMA, MINUS, POINT, ZERO, NINE, COLON = b"\t\n #%(*+,-.09:"
OPEN, CLOSE = b"{}"
_LOWER = 0x20  # the bit that makes an ASCII letter lower case


def _letters(word: bytes) -> int:
    """Encode a word as a number, ignoring case."""
    return sum((letter & 31) * 32**place for place, letter in enumerate(reversed(word)))


_NAN, _NA, _INF, _INFINITY = (_letters(word) for word in (b"nan", b"na", b"inf", b"infinity"))


@compiled
def libsvm(
    text: Text, ends: Numbers, columns: Ids, labels: Places | None, values: Places | None
) -> tuple[int, int, int, int]:
    """Parse lines of `label index:value ...`. Write the columns of all rows, counted from 0, into `columns`. Write
    the position in `columns` at which each row ends into `ends`. Blank lines and comments are not rows. Where they are
    given, write the place of each row's label into `labels`, and that of each value into `values`.

    Return the number of rows and edges, the position of a mistake, and its kind.
    """
    at, rows, edges = 0, 0, 0
    while at < len(text):
        begin = _past_blanks(text, at)
        indented, at = begin > at, begin
        if text[at] != NEWLINE and text[at] != HASH:
            # A line can have several labels; an indented line can have none.
            if labels is not None:
                labels[rows] = begin
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
            if labels is not None:
                labels[rows, 1] = at
            at = _past_blanks(text, at)
            while text[at] != NEWLINE and text[at] != HASH:
                begin, entry = at, edges
                if text[at] == 113 and text[at + 1] == 105 and text[at + 2] == 100 and text[at + 3] == COLON:  # qid:
                    at += 3
                else:
                    index = 0
                    while ZERO <= text[at] <= NINE and index <= MAX_COUNT:
                        index, at = index * 10 + int(text[at]) - ZERO, at + 1
                    if at == begin or text[at] != COLON:  # few are not such as 3:
                        at = _past_whole(text, begin)
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
                if values is not None and edges > entry:
                    values[entry, 0], values[entry, 1] = at, after
                at = _past_blanks(text, after)
            ends[rows] = edges
            rows += 1
        at = past_line(text, at)
    return rows, edges, -1, OK


@compiled
def pairs(text: Text, width: int, first: Numbers, second: Numbers) -> tuple[int, int, int, int]:
    """Parse the two integers of each line. Blank lines and comments are skipped. A third column with any content is
    allowed if all lines have one: `width` is the number of columns in the lines of earlier calls, 0 on the first call.

    Return the number of lines, their width, the position of a mistake, and its kind.
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
    """Return the end of the column that begins here, including any empty columns after it. The column is a word, or a
    Python dict up to the end of the line, as networkx writes for an edge."""
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
    text: Text,
    at: int,
    entries: int,
    shape: tuple[int, int],
    values: int,
    first: Ids,
    second: Ids,
    places: Places | None,
) -> tuple[int, int, int]:
    """Parse up to `entries` lines of a row, a column and `values` values. Rows and columns count from 1 in the text,
    and from 0 in the result. Blank lines and comments are skipped; more lines are a mistake. Where they are given,
    write the place of each entry's value into `places`.

    Return the number of lines, the position of a mistake, and its kind.
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
                if not 1 <= number <= shape[place]:
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
                if places is not None:
                    places[count, 0], places[count, 1] = begin, at
                at = _past_blanks(text, at)
            if text[at] != NEWLINE:
                return count, at, TOO_LONG
            count += 1
        at = past_line(text, at)
    return count, -1, OK


@compiled
def pins(text: Text, at: int, lines: int, vertices: int, ends: Numbers, numbers: Ids) -> tuple[int, int, int, int]:
    """Parse up to `lines` lines of integers. Each line holds the vertices of a hyperedge, also called its pins.

    Vertices count from 1 in the text, and from 0 in `numbers`. A blank line is a hyperedge without vertices. Comments
    are skipped; more lines are a mistake. The position in `numbers` at which each line ends is written into `ends`.

    Return the number of lines and integers, the position of a mistake, and its kind.
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
    """Return the start of the line after the line with byte `at`."""
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
    """Return the end of the integer that begins here; `at` itself if none does."""
    begin = at + 1 if text[at] == MINUS else at
    end = _past_digits(text, begin)
    return end if end > begin else at


@compiled
def _whole(text: Text, begin: int, end: int) -> int:
    """Return the integer in this range of the text; LARGEST or −LARGEST if it is too large for int64."""
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
    """Return the end of the value that begins here; `at` itself if none does."""
    end = _past_digits(text, at)
    if end > at:  # nearly all values are such as 3 or 0.25
        end = _past_digits(text, end + 1) if text[end] == POINT else end
        if _separates(text[end]):
            return end
    end = _past_number(text, at)
    if end > at and text[end] != HASH and text[end] | _LOWER != 120:  # x
        return end
    begin = at + 1 if text[at] == MINUS or text[at] == PLUS else at
    if end > at:
        if text[end] == HASH:  # 1.#INF, 1.#QNAN: the output of Microsoft's C library
            what = text[end + 1]
            if text[end - 1] == POINT and (what == 73 or what == 74 or what == 81 or what == 83):  # I, J, Q, S
                return _past_alphanumeric(text, end + 1)
            return end
        return _past_hexadecimal(text, end + 1) if end == begin + 1 and text[begin] == ZERO else end
    if text[begin] == STAR:  # Fortran's output for a number that does not fit into its field
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
    """Return the end of a hexadecimal number, such as 0x1.8p3. `at` is the position after its 0x. Return the position
    of the x if no digit follows it."""
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
    """Return the end of the decimal number that begins here, such as −1.5e3, or Fortran's 1.5D+03 and 1.5-103; `at`
    itself if none does."""
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
