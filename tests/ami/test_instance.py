"""The start data of an instance, read from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ami.imds import OwnInstance, read
from gridml.carriers.sftp import Address
from gridml.errors import UsageError

RIGHT: dict[str, Any] = {
    "run": "mnist",
    "host": "master.example.org",
    "port": 2222,
    "host_key": "AAAA",
    "fleet_token": "t0ken",
    "orphan_s": 600,
}


def test_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps({**RIGHT, "of a later version": 1}))
    found = read(path)
    assert found == OwnInstance("mnist", "master.example.org", 2222, "AAAA", "t0ken", 600.0)
    assert found.master == Address("master.example.org", 2222, "AAAA")
    assert "t0ken" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "{not JSON t0ken",
        json.dumps({**RIGHT, "fleet_token": ["t0ken"]}),
        json.dumps({**RIGHT, "port": "t0ken"}),
        json.dumps({**RIGHT, "port": 70000}),
        json.dumps({**RIGHT, "orphan_s": 0}),
        json.dumps({**RIGHT, "watch_s": float("nan")}),
        json.dumps({name: value for name, value in RIGHT.items() if name != "host"}),
    ],
)
def test_what_it_cannot_be_is_said_without_what_is_in_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"instance\.json.*The instance's user data write it") as error:
        read(path)
    assert "t0ken" not in str(error.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "instance.json")
