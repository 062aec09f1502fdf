"""Print the result of a benchmark as a table, and record it with the machine.

`benchmarks/results/NAME.json` is for programs, `NAME.md` for people; each run replaces both.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from benchmarks.arguments import smallest

Cell = str | int | float | bool | None
RESULTS = Path(__file__).parent / "results"


def results() -> Path:
    """Return the folder for results; in the smallest form a temporary one, which is removed when the process exits."""
    return _unkept() if smallest() else RESULTS


@functools.cache
def _unkept() -> Path:
    folder = tempfile.mkdtemp(prefix="unkept-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write(
    name: str, title: str, rows: Sequence[Mapping[str, Cell]], notes: Sequence[str] = (), folder: Path | None = None
) -> None:
    """Print `rows` (one mapping a line, column to cell) under `title`, and write them to `folder`, `results()` if none
    is given."""
    folder = results() if folder is None else folder
    described = machine()
    lines = [f"# {title}", "", *markdown(rows), ""]
    lines += [f"- {note}" for note in notes]
    lines += [f"- {', '.join(f'{key} {value}' for key, value in described.items())}"]
    text = "\n".join(lines) + "\n"
    print(text, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"title": title, "machine": described, "rows": [dict(row) for row in rows], "notes": list(notes)}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(text, encoding="utf-8")


def merged(name: str, rows: Sequence[Mapping[str, Cell]], by: Sequence[str]) -> list[Mapping[str, Cell]]:
    """Return what was recorded under `name`, with `rows` in place of those that have the same cells in the columns
    `by`; further ones come last."""
    file = results() / f"{name}.json"
    recorded = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    together = {tuple(row.get(column) for column in by): row for row in [*recorded, *rows]}
    return list(together.values())


def markdown(rows: Sequence[Mapping[str, Cell]]) -> list[str]:
    """Return the lines of a table. Its columns are all keys, in order of appearance; numbers are right-aligned."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max([3, len(column), *(len(line[i]) for line in cells)]) for i, column in enumerate(columns)]
    right = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]

    def line(parts: Sequence[str]) -> str:
        padded = (
            part.rjust(width) if to_right else part.ljust(width)
            for part, width, to_right in zip(parts, widths, right, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * (width - 1) + (":" if to_right else "-") for width, to_right in zip(widths, right, strict=True)]
    return [line(columns), line(rule), *(line(parts) for parts in cells)]


def machine() -> dict[str, str]:
    """Return the description of the machine; figures of different machines cannot be compared."""
    versions = {package: _version(package) for package in ("numpy", "torch", "numba")}
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        **versions,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1000 else f"{cell:.0f}"
    return str(cell)
