"""Only a back end's own files, and its registration, name a back end, in code and in texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gridml", "master", "remote", "chunk_model", "ami")
NAME = re.compile("condor|(?<![a-z0-9])ec2", re.IGNORECASE)
# `gridml ami` makes the image that one of them boots, which is in ami/.
OWN = ("master/backends/condor/", "master/backends/ec2/", "ami/", "gridml/cli/ami.py")
REGISTERS = "master/backends/registry.py"


def naming(files: dict[str, str]) -> set[str]:
    """Return the paths of the files that name a back end and must not."""
    return {path for path, text in files.items() if NAME.search(text) and not path.startswith(OWN)} - {REGISTERS}


def sources() -> dict[str, str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def test_no_generic_file_names_a_back_end() -> None:
    assert naming(sources()) == set()


def test_each_is_registered_in_one_line() -> None:
    lines = (ROOT / REGISTERS).read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if NAME.search(line)]) == 2


@pytest.mark.parametrize(
    "text",
    ["settings.condor", "# as HTCondor does", 'backend == "condor"', "CondorOptions()", "for EC2", "Ec2Options()"],
)
def test_a_name_is_seen(text: str) -> None:
    assert naming({"master/fleet/fleet.py": text}) == {"master/fleet/fleet.py"}
    assert naming({"master/backends/condor/backend.py": text}) == set()
