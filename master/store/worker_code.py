"""What a worker elsewhere runs: the packages of gridml it imports as one file, and the copy of the program."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

from gridml.model.own_modules import folder_of, own_files
from master.store.rundir import RunDirectory

CODE = "gridml.pyz"
_SENT = ("gridml", "remote")  # the packages a worker needs
_MAIN = "import sys\nfrom remote.worker import main\nsys.exit(main())\n"


def write_code(path: Path) -> None:
    """Write the packages that a worker imports as one file that Python runs; it needs numpy."""
    temporary = path.with_name(f".{path.name}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _MAIN)
        for package in _SENT:
            spec = importlib.util.find_spec(package)
            assert spec is not None and spec.submodule_search_locations
            folder = Path(next(iter(spec.submodule_search_locations)))
            for file in sorted(folder.rglob("*.py")):
                archive.write(file, f"{package}/{file.relative_to(folder)}")
    temporary.replace(path)


def program_entries(program: Path, directory: RunDirectory) -> list[Path]:
    """Return the files and folders that, side by side, are the program elsewhere, its own file first: the run's copy,
    or the originals before there is a run."""
    kept = directory.kept_program(program)
    if kept.program.is_file():
        return [path.absolute() for path in kept.entries]
    inside = (folder_of(program) / name.split("/")[0] for name in own_files(program))
    return list(dict.fromkeys([program, *(path for path in inside if path.name != program.name)]))
