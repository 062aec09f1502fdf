"""A script that makes a program, runs it on real workers, and goes on with what they trained."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = (ROOT / "tests" / "programs" / "perceptron.py").read_text()


def readme_example() -> str:
    """The second block of Python in README: what begins a run from a script."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert "gridml.run" in blocks[1]
    return blocks[1]


AFTER = """
    print(json.dumps({
        "status": run.status, "threads": torch.get_num_threads(), "keys": len(model.state_dict()),
        "metrics": run.metrics(), "credited": run.report().credited, "run_dir": str(run.run_dir),
    }))
"""


def executed(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, "-W", "error", str(script)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.real
def test_the_example_of_the_readme_with_another_network(tmp_path: Path) -> None:
    before = "\nimport json\nlenet = perceptron\ntorch.set_num_threads(2)\n"
    done = executed(tmp_path, PROGRAM + before + readme_example() + AFTER)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, accuracy, last = done.stdout.splitlines()
    said = json.loads(last)
    assert said["status"] == "finished" and said["threads"] == 2 and said["keys"] == 9
    assert [each["epoch"] for each in said["metrics"]] == [1, 2, 3] and said["credited"] == 3000
    assert float(accuracy) == said["metrics"][-1]["accuracy"] > 0.8
    assert "finished  every vertex of 3,000 is credited once" in lines[-1]
    assert said["run_dir"].startswith("runs/script-")


@pytest.mark.real
def test_a_script_that_would_start_itself_again_is_told_to_guard_the_call(tmp_path: Path) -> None:
    done = executed(tmp_path, f"{PROGRAM}\ngridml.run(program, workers=1, run_dir='run')\n")
    assert done.returncode == 1
    assert done.stderr.count('Put the call under  if __name__ == "__main__":  in that file.') == 1
    assert not (tmp_path / "run").exists()
