"""A script that defines a program, runs it on real workers, and uses the trained result."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gridml
from gridml.errors import UnguardedError
from gridml.model.loading import load

ROOT = Path(__file__).parents[3]
PROGRAM = (ROOT / "tests" / "programs" / "perceptron.py").read_text()


def example() -> str:
    """The guide's block that starts a run from a script."""
    found = re.search(r"^<!-- script -->\n```python\n(.*?)^```$", (ROOT / "docs/guide.md").read_text(), re.M | re.S)
    assert found is not None and "gridml.run" in found[1]
    return found[1]


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
def test_the_example_of_the_guide_with_another_network(tmp_path: Path) -> None:
    before = "\nimport json\nnetwork = perceptron\ntorch.set_num_threads(2)\n"
    done = executed(tmp_path, PROGRAM + before + example() + AFTER)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, accuracy, last = done.stdout.splitlines()
    said = json.loads(last)
    assert said["status"] == "finished" and said["threads"] == 2 and said["keys"] == 9
    assert [each["epoch"] for each in said["metrics"]] == [1, 2, 3] and said["credited"] == 3000
    assert float(accuracy) == said["metrics"][-1]["accuracy"] > 0.8
    assert "finished  every vertex of 3,000 is credited once" in lines[-1]
    assert said["run_dir"].startswith(f"{tmp_path}/runs/script-")


def test_a_script_that_would_start_itself_again_gets_advice_to_guard_the_call(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        (ROOT / "tests" / "programs" / "tally.py").read_text() + "\ngridml.run(program, workers=1, run_dir='run')\n"
    )
    with pytest.raises(UnguardedError) as refused:  # as the script itself, when it comes to its last line
        gridml.run(script, workers=1, run_dir=tmp_path / "run", display="none")
    said = str(refused.value)
    assert said.startswith(f"{script} calls gridml.run while it is loaded")
    assert 'Put the call under  if __name__ == "__main__":  in that file.' in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()
    script.write_text(script.read_text().replace("gridml.run(", "if __name__ == '__main__':\n    gridml.run("))
    assert load(script).epochs == 2
