"""What an instance fetches when it has enrolled, in the folder `bundle` of the run: gridml's code and the program, each
file under its SHA-256, so that the folder is flat whatever modules lie beside a program; and `bundle.json`, which says
how they are called and with which arguments they are run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from gridml.carriers.enrolment import BUNDLE, BUNDLE_DESCRIPTION, BundleFile
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
    sources = {CODE: code}
    for entry in program_entries(settings.program, directory):
        paths = sorted(entry.rglob("*.py")) if entry.is_dir() else [entry]
        sources |= {path.relative_to(entry.parent).as_posix(): path for path in paths}
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


def _keep(name: str, payload: bytes, folder: Path) -> BundleFile:
    digest = bundle.digest(payload)
    bundle.write_atomic(folder / digest, payload, durable=False)
    return BundleFile(name, digest)


def _arguments(settings: Settings) -> list[str]:
    """Of a worker, but for its name, its carrier and its program, which its instance adds."""
    patience, keep = f"{settings.silent_s:g}", str(outbox.share(settings.workers))
    return ["--seed", str(settings.seed), "--patience", patience, "--keep", keep]


def _environment(site: Site) -> dict[str, str]:
    """A thread for each vCPU. Where types have different numbers of them, libraries take what they find."""
    if site.vcpus is None:
        return {}
    return {"OMP_NUM_THREADS": str(site.vcpus), "MKL_NUM_THREADS": str(site.vcpus)}
