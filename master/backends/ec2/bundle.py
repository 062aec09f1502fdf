"""What an instance fetches when it has enrolled, in the folder `bundle` of the run: gridml's code and the program, each
file under its SHA-256, so that the folder is flat whatever modules lie beside a program; and `bundle.json`, which says
how they are called and with which arguments they are run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from gridml.carriers.enrolment import BUNDLE, BUNDLE_DESCRIPTION, FILE_NAME, MOST_FILES, BundleFile
from gridml.errors import UsageError
from gridml.protocol import bundle, outbox
from master.backends.ec2.site import Site
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.worker_code import CODE, program_entries, write_code


def write_bundle(settings: Settings, directory: RunDirectory, site: Site) -> None:
    """Write the files and their description, which comes last. Files that are of the bundle no more are removed."""
    folder = directory.root / BUNDLE
    folder.mkdir(exist_ok=True)
    code = folder / CODE
    write_code(code)
    sources = {CODE: code, **_modules(settings.program, directory)}
    files = [_keep(name, path.read_bytes(), folder) for name, path in sources.items()]
    described = {
        "files": [asdict(file) for file in files],
        "program": settings.program.name,
        "arguments": _arguments(settings),
        "environment": _environment(site),
    }
    bundle.write_atomic(folder / BUNDLE_DESCRIPTION, json.dumps(described, indent=1).encode(), durable=False)
    kept = {BUNDLE_DESCRIPTION, *(file.sha256 for file in files)}
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()


def _modules(program: Path, directory: RunDirectory) -> dict[str, Path]:
    """The program and what it imports from beside it, by their paths from there, the program's own file first. Raises
    UsageError for what no instance would take, before any is paid for."""
    found: dict[str, Path] = {}
    for entry in program_entries(program, directory):
        paths = sorted(entry.rglob("*.py")) if entry.is_dir() else [entry]
        found |= {path.relative_to(entry.parent).as_posix(): path for path in paths if _can_be_imported(path, entry)}
    odd = next((name for name in found if not FILE_NAME.fullmatch(name)), None)
    if odd is not None:
        raise UsageError(f"instances do not take a file called {odd!r}; expected letters, digits, '_', '-' and '.'.")
    if len(found) >= MOST_FILES:
        raise UsageError(
            f"{program.name} and what it imports from beside it are {len(found)} files; expected fewer than "
            f"{MOST_FILES}. Make a package of them, and give it to gridml ami build with --package."
        )
    return found


def _can_be_imported(path: Path, entry: Path) -> bool:
    """Whether a file can be a module; folders of tools, such as .ipynb_checkpoints, have others."""
    return path == entry or all(part.isidentifier() for part in path.relative_to(entry).with_suffix("").parts)


def _keep(name: str, payload: bytes, folder: Path) -> BundleFile:
    digest = bundle.digest(payload)
    bundle.write_atomic(folder / digest, payload, durable=False)
    return BundleFile(name, digest)


def _arguments(settings: Settings) -> list[str]:
    """Of a worker, but for its name, its carrier and its program, which its instance adds."""
    patience, keep = f"{settings.silent_s:g}", str(outbox.share(settings.workers))
    return ["--seed", str(settings.seed), "--device", settings.device, "--patience", patience, "--keep", keep]


def _environment(site: Site) -> dict[str, str]:
    """A thread for each vCPU. Where types have different numbers of them, libraries take what they find."""
    if site.vcpus is None:
        return {}
    return {"OMP_NUM_THREADS": str(site.vcpus), "MKL_NUM_THREADS": str(site.vcpus)}
