"""Machine code that is cached on disk."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gridml.placement.auto import METHODS
from gridml.placement.base import Options
from tests.support.graphs import grouped

PLACES = """
import sys
from gridml.placement.base import Options
from gridml.placement.auto import METHODS
from tests.support.graphs import grouped

rows = METHODS[sys.argv[1]].place(grouped(120, 60, 6), 4, Options()).rows
print("".join(map(str, rows)), "numba.np.linalg" in sys.modules)
"""


@pytest.mark.parametrize("method", ["parsa", "multilevel"])
def test_a_process_that_finds_machine_code_fills_no_tables_of_a_compiler(method: str) -> None:
    rows = METHODS[method].place(grouped(120, 60, 6), 4, Options()).rows  # compiles missing code
    done = subprocess.run([sys.executable, "-c", PLACES, method], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["".join(map(str, rows)), "False"]
