"""The staged folder of an image; and the project's own wheel has the same files."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from ami.build import IMAGE, Additions, packed, stage
from ami.run_files import version, write_wheel
from gridml.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def test_all_that_install_sh_takes_is_there(tmp_path: Path) -> None:
    for name in ("mine.txt", "mine.conf"):
        (tmp_path / name).write_text(f"# {name}\n")
    folder = tmp_path / "staged"
    stage(folder, Additions(("scipy>=1.11", "pillow"), tmp_path / "mine.txt", tmp_path / "mine.conf"))
    names = {file.name for file in folder.iterdir()}
    wheel = f"gridml-{version()}-py3-none-any.whl"
    assert names == {*(file.name for file in IMAGE.iterdir()), wheel, "constraints.txt", "pip.conf"}
    assert (folder / "constraints.txt").read_text() == "# mine.txt\n"
    assert (folder / "packages.txt").read_text().splitlines()[-2:] == ["scipy>=1.11", "pillow"]
    with tarfile.open(fileobj=io.BytesIO(packed(folder))) as archive:
        assert set(archive.getnames()) == names


@pytest.mark.parametrize("package", ["", "  ", "-r other.txt", "--index-url=x", "scipy\n--pre", "# nothing"])
def test_what_is_no_requirement(package: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a requirement of pip"):
        stage(tmp_path / "staged", Additions((package,)))


def test_a_folder_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="is not empty"):
        stage(tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        stage(tmp_path / "mine" / "below")


@pytest.mark.real
def test_the_wheel_is_one_and_has_the_daemon(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [record] = [name for name in names if name.endswith("/RECORD")]
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
        assert [row[0] for row in rows] == names
        for name, digest, size in rows[:-1]:
            content = archive.read(name)
            said = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (f"sha256={said}", str(len(content))) == (digest, size)
    assert not any(name.startswith(("master/", "chunk_model/", "pools/", "tests/")) for name in names)
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run([*map(str, install)], check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, "-m", "ami.daemon", "--config", "none"],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (2, "") and "none cannot be read" in done.stdout


def test_the_same_files_make_the_same_wheel(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert write_wheel(tmp_path).read_bytes() == write_wheel(tmp_path / "again").read_bytes()


@pytest.mark.real
@pytest.mark.long
def test_the_projects_own_wheel_has_the_image_folder(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, timeout=280)
    with zipfile.ZipFile(next(tmp_path.glob("gridml-*.whl"))) as archive:
        assert {f"ami/image/{file.name}" for file in IMAGE.iterdir()} <= set(archive.namelist())
