"""Text from elsewhere, made printable and short: what a worker, its log or a batch system says may hold anything.

Whoever makes such text cuts it before it travels, and whoever takes it in does so again.
"""

from __future__ import annotations

NAME = 128  # characters at most: of a worker, a process, a kind of machine, a tensor's name in an error
MESSAGE = 2_000  # of what went wrong, in words
TRACEBACK = 20_000
_NOTE = 64  # of the words in place of what is left out


def printable(text: str, limit: int = MESSAGE) -> str:
    r"""Return `text` in at most `limit` characters, 64 or more, all of which print.

    What does not (terminal escapes, lone surrogates, what turns the direction of a line) becomes an escape such as
    `\x1b`; newlines and tabs stay. What is too long loses its middle, and says how much. Idempotent.
    """
    text = _shortened(text, limit)
    if text.isprintable():
        return text
    shown = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return _shortened(shown, limit)


def described(error: BaseException) -> str:
    """Return the type and the words of an error, printable; of one that cannot be put into words the type alone."""
    try:
        words = str(error)
    except Exception as another:
        words = f"(what it says cannot be had: {type(another).__name__})"
    return printable(f"{type(error).__name__}: {words}")


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    kept = limit - _NOTE
    head = kept // 2
    return f"{text[:head]} [... {len(text) - kept:,} characters left out ...] {text[len(text) - (kept - head) :]}"
