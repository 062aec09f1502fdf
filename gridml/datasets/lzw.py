"""What compress(1) packs: Lempel, Ziv and Welch's method (Welch 1984), codes of 9 to 16 bits in groups of eight."""

from __future__ import annotations

from gridml.errors import DataError

_CLEAR = 256  # the code after which the table begins again
_FEWEST_BITS = 9
_MOST_BITS = 16


def expand(packed: bytes) -> bytes:
    """Return the bytes that `packed` stands for: a stream of compress(1) in block mode without its first three bytes.

    Raises DataError for a code that stands for nothing yet.
    """
    table = [bytes([byte]) for byte in range(256)] + [b""]
    out: list[bytes] = []
    bits, at, group = _FEWEST_BITS, 0, 0  # `group`: the bit at which groups of this width began
    before = b""
    while at + bits <= 8 * len(packed):
        window = int.from_bytes(packed[at >> 3 : (at >> 3) + 4], "little")
        code = (window >> (at & 7)) & ((1 << bits) - 1)
        at += bits
        wider = False
        if code == _CLEAR:
            del table[_CLEAR + 1 :]
            before = b""
        else:
            if code > len(table) or (code == len(table) and not before):
                raise DataError(f"the packed text has the code {code} at bit {at}, which stands for nothing")
            # The one code that may not be in the table yet is that of what came before and its own first byte.
            now = table[code] if code < len(table) else before + before[:1]
            if before and len(table) < 1 << _MOST_BITS:
                table.append(before + now[:1])
            out.append(now)
            before = now
            wider = len(table) >= 1 << bits and bits < _MOST_BITS
        if wider or code == _CLEAR:
            # The packer writes whole groups of eight codes: what is left of this one is filler.
            at = group - (group - at) // (8 * bits) * (8 * bits)
            group, bits = at, bits + 1 if wider else _FEWEST_BITS
    return b"".join(out)
