"""The files that a worker needs: the bundle that an instance fetches, and the wheel in an image.

The files of the bundle are fetched from the master and verified, and the job's credential is written next to them. The
wheel is made from this installation and holds the packages that an instance needs. So an image has the code of the
submit host, however gridml was installed there, and nothing needs to be published or built first. The wheel's format is
https://packaging.python.org/specifications/binary-distribution-format.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from gridml.carriers.enrolment import Assignment, BundleFile
from gridml.carriers.sftp import READ, Address, Credential, SftpConnection, as_oserror
from gridml.errors import RunError, StorageError
from gridml.protocol.bundle import write_secret

CODE = "gridml.pyz"  # the worker's code, a file of every bundle
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")  # variables that a worker gets as they are


def prepare(assignment: Assignment, master: Address, private_key: str, folder: Path) -> None:
    """Write the files that an assignment's worker needs into `folder`. A file that exists and is correct is kept.

    Raises RunError for an invalid bundle, StorageError for a fault of this machine's disk, OSError if the master is
    unreachable.
    """
    check(assignment)
    credential = Credential(master.host, master.port, master.host_key, assignment.job, private_key)
    with _on_disk("the worker's folder cannot be used"):
        write_secret(folder / assignment.job, credential.to_json())
        missing = [file for file in assignment.files if not _is_right(folder / file.name, file)]
    if missing:
        with contextlib.closing(SftpConnection(credential)) as line:
            sftp = line.session()
            for file in missing:
                _fetch(sftp, file, folder, str(master))


def check(assignment: Assignment) -> None:
    """Raise RunError for a bundle without the worker or its program, or with files that overwrite each other."""
    names = [file.name for file in assignment.files]
    absent = [name for name in (CODE, assignment.program) if name not in names]
    if absent:
        raise RunError(f"the bundle has {', '.join(names) or 'nothing'}, and lacks {' and '.join(absent)}")
    if assignment.job in names or len(set(names)) < len(names):
        raise RunError(f"the bundle has two files of one name, or one of the job's: {', '.join(names)}")


def command(assignment: Assignment) -> list[str]:
    """Return the worker's command, to be run in the folder of its files."""
    named = ["--name", assignment.job, "--carrier", "sftp", "--program", assignment.program]
    return [sys.executable, CODE, *named, *assignment.arguments, "--parent", str(os.getpid())]


def environment(assignment: Assignment, folder: Path, own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the worker's environment: a few variables of `own`, the daemon's environment, and all variables of the
    assignment, which have priority."""
    return {**{name: own[name] for name in _PASSED_ON if name in own}, "HOME": str(folder), **assignment.environment}


def _fetch(sftp: Any, file: BundleFile, folder: Path, source: str) -> None:
    """Fetch a file, resuming an earlier attempt. The file gets its name only if its digest is right."""
    part = folder / f".{file.sha256}.part"
    # First complete the part that an earlier attempt left; if there is none or its digest is wrong, start over.
    for begun in (True, False):
        if not begun:
            part.unlink(missing_ok=True)
        elif not part.exists():
            continue
        _fetch_rest(sftp, file.path, part, source)
        if _is_right(part, file):
            path = folder / file.name
            with _on_disk(f"{path.name} cannot be kept"):
                path.parent.mkdir(parents=True, exist_ok=True)
                part.replace(path)
            return
    got = _sha256(part)
    part.unlink()
    raise RunError(f"{file.name} is not what the master announced: its SHA-256 is {got}, expected {file.sha256}")


def _fetch_rest(sftp: Any, path: str, part: Path, source: str) -> None:
    paramiko, unwritten = importlib.import_module("paramiko"), f"{part.name} cannot be written"
    with _on_disk(unwritten):
        kept = part.open("ab", buffering=0)  # unbuffered, so that close cannot fail with pending data
    with kept, as_oserror(paramiko, f"{source} {path}"), contextlib.closing(sftp.open(path, "rb")) as theirs:
        theirs.MAX_REQUEST_SIZE = READ
        theirs.seek(kept.tell())
        while content := theirs.read(READ):
            rest = memoryview(content)
            with _on_disk(unwritten):
                while rest:
                    rest = rest[kept.write(rest) :]


@contextlib.contextmanager
def _on_disk(trouble: str) -> Iterator[None]:
    """Translate OSError of this machine's disk to StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{trouble}: {error}") from error


def _is_right(path: Path, file: BundleFile) -> bool:
    return path.is_file() and _sha256(path) == file.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


PACKAGES = ("gridml", "remote", "ami")  # packages in the wheel
_DEPENDENCIES = ("numpy", "paramiko")  # packages that pip installs with the wheel
_EPOCH = (2026, 1, 1, 0, 0, 0)  # fixed mtime: the same files make the same wheel


def version() -> str:
    """Return the installed version of gridml."""
    return metadata.version("gridml")


def write_wheel(folder: Path) -> Path:
    """Write `gridml-VERSION-py3-none-any.whl` into a folder, and return its path. Raises OSError."""
    number = version()
    path = folder / f"gridml-{number}-py3-none-any.whl"
    described = "".join(f"Requires-Dist: {name}\n" for name in _DEPENDENCIES)
    about = f"gridml-{number}.dist-info"
    contents = {
        **_sources(),
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: gridml\nVersion: {number}\n{described}".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: gridml\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in contents.items()]
    contents[f"{about}/RECORD"] = "".join([*record, f"{about}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return path


def _sources() -> dict[str, bytes]:
    """Return the content of the packages, by path in the wheel."""
    found = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        root = Path(next(iter(spec.submodule_search_locations)))
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                found[f"{package}/{file.relative_to(root)}"] = file.read_bytes()
    return found


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
