"""examples/mnist.py with the paper's merge rule, (v + v')/2."""

import sys
from pathlib import Path

import gridml

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from mnist import Network, program  # noqa: F401 - gridml finds the program in this file

Network.aggregate = gridml.mean()  # type: ignore[assignment]
