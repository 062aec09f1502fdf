"""uPlot, which draws the charts: brought by the package youplot, whose files are taken as they are and checked."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from gridml.errors import UsageError

PACKAGE = "youplot"
SCRIPT = "uplot.iife.min.js"
STYLE = "uplot.min.css"
SHA256 = {  # of uPlot 1.6.31
    SCRIPT: "2d27e8ad3d228164525ce213f9dc716f39b4e3aee0cc773fb3491c96cf4921a2",
    STYLE: "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
GET_IT = "pip install 'gridml[page]'"


@dataclass(frozen=True)
class ChartLibrary:
    """The text of uPlot's two files."""

    script: str
    style: str


def read_library() -> ChartLibrary:
    """Return uPlot. Raises UsageError when it is not installed, or not the one that this page was made for.

    The package that brings it is not imported: nothing of it runs here.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UsageError(f"A page needs uPlot, which {PACKAGE} brings and is not installed. Get it with: {GET_IT}")
    folder = Path(spec.origin).parent / "vendor"
    return ChartLibrary(*(_read_checked(folder / name) for name in (SCRIPT, STYLE)))


def _read_checked(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Install it again with: {GET_IT}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256[path.name]:
        raise UsageError(
            f"{path} has the SHA-256 {digest}, expected {SHA256[path.name]} of uPlot 1.6.31. "
            f"Install the right one with: {GET_IT}"
        )
    return content.decode()
