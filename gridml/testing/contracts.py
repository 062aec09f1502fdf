"""What the checks of a contract raise, and how they say what they got and what they expected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ContractBroken(AssertionError):
    """An implementation does not keep its contract; the message says which law, what was got and what was expected."""


def require(condition: bool, law: str) -> None:
    """Raise ContractBroken with `law` unless `condition` holds."""
    if not condition:
        raise ContractBroken(law)


def expect(got: object, expected: object, law: str) -> None:
    """Raise ContractBroken unless `got` equals `expected`."""
    if got != expected:
        raise ContractBroken(f"{law}: got {got!r}, expected {expected!r}")


@contextmanager
def expect_error(error: type[Exception], law: str, message: str = "") -> Iterator[None]:
    """Raise ContractBroken unless what runs inside raises `error`, with `message` in its text."""
    try:
        yield
    except error as raised:
        require(message in str(raised), f"{law}: got {str(raised)!r}, expected a message with {message!r}")
        return
    raise ContractBroken(f"{law}: got no error, expected {error.__name__}")
