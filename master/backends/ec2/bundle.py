"""What an instance fetches when it has enrolled, in the folder `bundle` of the run: gridml's code and the program, and
`bundle.json`, which says with which arguments they are run and what the SHA-256 of each file is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from gridml.protocol import bundle, outbox
from master.backends.ec2.site import Site
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from master.store.worker_code import CODE, program_entries, write_code

FOLDER = "bundle"
DESCRIPTION = "bundle.json"


def write_bundle(settings: Settings, directory: RunDirectory, site: Site) -> None:
    """Write the files and their description, which comes last. Files that are of the bundle no more are removed."""
    folder = directory.root / FOLDER
    folder.mkdir(exist_ok=True)
    write_code(folder / CODE)
    names = [CODE]
    for entry in program_entries(settings.program, directory):
        for path in sorted(entry.rglob("*.py")) if entry.is_dir() else [entry]:
            name = path.relative_to(entry.parent).as_posix()
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            bundle.write_atomic(folder / name, path.read_bytes(), durable=False)
            names.append(name)
    _remove_others(folder, {*names, DESCRIPTION})
    files = [{"name": name, "path": f"{FOLDER}/{name}", "sha256": _digest(folder / name)} for name in names]
    described = {
        "files": files,
        "program": settings.program.name,
        "arguments": _arguments(settings),
        "environment": _environment(site),
    }
    bundle.write_atomic(folder / DESCRIPTION, json.dumps(described, indent=1).encode(), durable=False)


def _arguments(settings: Settings) -> list[str]:
    """Of a worker, but for its name, its carrier and its program, which its instance adds."""
    patience, keep = f"{settings.silent_s:g}", str(outbox.share(settings.workers))
    return ["--seed", str(settings.seed), "--patience", patience, "--keep", keep]


def _environment(site: Site) -> dict[str, str]:
    """A thread for each vCPU. Where types have different numbers of them, libraries take what they find."""
    if site.vcpus is None:
        return {}
    return {"OMP_NUM_THREADS": str(site.vcpus), "MKL_NUM_THREADS": str(site.vcpus)}


def _digest(path: Path) -> str:
    return bundle.digest(path.read_bytes())


def _remove_others(folder: Path, names: set[str]) -> None:
    kept = {name.split("/")[0] for name in names}
    for path in folder.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
