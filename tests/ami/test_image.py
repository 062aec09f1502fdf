"""The content of an image, checked with the tools that read it there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import ami

IMAGE = Path(ami.__file__).parent / "image"
UNIT = IMAGE / "gridml-worker.service"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, check=False)


def as_root_of(folder: Path, unit: str) -> str:
    """The unit with an existing executable, because systemd checks that."""
    python = folder / "python"
    python.symlink_to("/bin/true")
    return unit.replace("/opt/gridml/venv/bin/python", str(python))


def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(as_root_of(tmp_path, UNIT.read_text()))
    done = run(tool("systemd-analyze"), "verify", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")  # bad keys only cause warnings


@pytest.mark.parametrize(
    ("line", "broken"),
    [("KillMode=mixed", "KillMood=mixed"), ("StartLimitAction=poweroff", "StartLimitAction=sleep")],
)
def test_it_would_complain(line: str, broken: str, tmp_path: Path) -> None:
    unit, text = tmp_path / UNIT.name, UNIT.read_text()
    assert line in text
    unit.write_text(as_root_of(tmp_path, text.replace(line, broken)))
    done = run(tool("systemd-analyze"), "verify", unit)
    assert broken.partition("=")[0] in done.stdout + done.stderr


def test_the_worker_is_confined() -> None:
    # `security` exits 1 where the exposure is above the threshold, tenths of its 0 (best) to 10.
    done = run(tool("systemd-analyze"), "security", "--offline=yes", "--threshold=40", UNIT)
    assert done.returncode == 0, done.stdout


def test_cloud_init_understands_the_drop_in() -> None:
    done = run(tool("cloud-init"), "schema", "-c", IMAGE / "90_gridml.cfg")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shell_script_is_clean() -> None:
    done = run(tool("shellcheck"), IMAGE / "install.sh", IMAGE / "clean.sh")
    assert done.returncode == 0, done.stdout


def test_the_script_wants_root_and_one_wheel(tmp_path: Path) -> None:
    shutil.copy(IMAGE / "install.sh", tmp_path)
    done = run("sh", tmp_path / "install.sh")
    assert done.returncode == 1
    assert "run this as root" in done.stdout or "expected one gridml-*.whl" in done.stdout


def test_the_script_installs_all_that_lies_here() -> None:
    script = (IMAGE / "install.sh").read_text()
    forgotten = {file.name for file in IMAGE.iterdir() if f"$here/{file.name}" not in script}
    assert forgotten == {"install.sh", "worker.pkr.hcl"}
