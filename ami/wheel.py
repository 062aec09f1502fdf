"""The wheel that goes into an image: the packages of this installation that an instance needs, as they are here.

So the image has what the submit host has, however that was installed, and nothing has to be published or built first.
The format is https://packaging.python.org/specifications/binary-distribution-format.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import zipfile
from importlib import metadata
from pathlib import Path

PACKAGES = ("gridml", "remote", "ami")
_DEPENDENCIES = ("numpy", "paramiko")
_EPOCH = (2026, 1, 1, 0, 0, 0)  # the same files make the same wheel


def version() -> str:
    """The version of gridml that is installed."""
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
    """What is in the packages, by path in the wheel."""
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
