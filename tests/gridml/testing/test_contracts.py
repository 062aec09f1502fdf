"""Messages of the contract checks have the received and the expected value; the checks need no test packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gridml.testing
from gridml.testing.contracts import ContractBroken, expect, expect_error, require
from master.backends import contract


def test_what_is_broken_is_said_with_what_was_got_and_expected() -> None:
    with pytest.raises(ContractBroken, match=r"^the sum of two and two: got 5, expected 4$"):
        expect(5, 4, "the sum of two and two")
    with pytest.raises(ContractBroken, match="a law"):
        require(False, "a law")
    with pytest.raises(ContractBroken, match="a law: got no error, expected OSError"), expect_error(OSError, "a law"):
        pass
    with pytest.raises(ContractBroken, match=r"got 'no', .*'yes'"), expect_error(OSError, "a law", "yes"):
        raise OSError("no")


def test_what_keeps_the_contract_passes_and_other_errors_are_let_through() -> None:
    expect(4, 4, "the sum of two and two")
    require(True, "a law")
    with expect_error(OSError, "a law", "yes"):
        raise FileNotFoundError("yes")
    with pytest.raises(ZeroDivisionError), expect_error(OSError, "a law"):
        raise ZeroDivisionError


def test_the_checks_need_nothing_that_only_tests_have() -> None:
    (folder,) = gridml.testing.__path__
    for path in [*Path(folder).glob("*.py"), Path(contract.__file__)]:
        assert not re.search(r"^\s*(import|from) (pytest|hypothesis|psutil)\b", path.read_text(), re.MULTILINE), path
