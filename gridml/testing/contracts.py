"""Assertions shared by the contract checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ContractBroken(AssertionError):
    """An implementation violates its contract. The message names the law, and what was got and expected."""


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
    """Raise ContractBroken unless the body raises `error` with `message` in its text."""
    try:
        yield
    except error as raised:
        require(message in str(raised), f"{law}: got {str(raised)!r}, expected a message with {message!r}")
        return
    raise ContractBroken(f"{law}: got no error, expected {error.__name__}")
