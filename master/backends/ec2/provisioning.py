"""The common parts of a run's instances: site, token, tags, bundle, user data.

The run's first master makes them, and they are kept.

An instance that has enrolled fetches the folder `bundle` of the run: gridml's code and the program, each file under
its SHA-256, so that the folder is flat whatever modules lie beside a program; and `bundle.json`, which says how
they are called and with which arguments they are run.

User data say where the master is, its host key, and the fleet's token. They are the same for all instances. Every
account that may describe the launch template can read them, so the token alone admits no one: an instance shows its
signed identity document, too (`master/sftp/enrolment.py`).

Calls to AWS that take a while run beside the master's loop, which never waits for an answer.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gridml.carriers.enrolment import BUNDLE, BUNDLE_DESCRIPTION, FILE_NAME, MAX_BUNDLE_FILES, BundleFile
from gridml.carriers.sftp import Address, host_and_port
from gridml.errors import RunError, UsageError
from gridml.protocol import bundle, outbox
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.options import Ec2Options
from master.backends.ec2.site import Site, find_site
from master.sftp.roster import FOLDER, FleetFacts, Roster
from master.store.rundir import CODE, RunDirectory, program_entries, write_code
from master.store.settings import Settings

TOKEN = "token"  # file beside the roster; only its owner reads it
"""What instances show when they enrol. A later master starts more of them with the same."""


def site_of(cloud: Cloud, options: Ec2Options, roster: Roster) -> Site:
    """Where the run's instances are: those of a later master have the image of the first, unless its user says."""
    facts = roster.facts
    return find_site(cloud, options if facts is None else replace(options, image=options.image or facts.image))


def provision(directory: RunDirectory, roster: Roster, site: Site) -> tuple[FleetFacts, str]:
    """What the run's instances must show, and the token: made by its first master, and kept. Raises RunError where the
    run belongs to another account or region."""
    facts, path = roster.facts, directory.root / FOLDER / TOKEN
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if facts is not None and (facts.account, facts.region) != (site.account, site.region):
        raise RunError(
            f"{directory.root} has its instances in {facts.region} of account {facts.account}, and the credentials are "
            f"of {site.account} in {site.region}. Use those of {facts.account}."
        )
    token = path.read_text() if facts is not None and path.exists() else secrets.token_urlsafe(32)
    if not path.exists():
        bundle.write_secret(path, token)
    name = re.sub(r"[^A-Za-z0-9-]+", "-", directory.place.name).strip("-")[:60]
    facts = FleetFacts(
        run=f"{name}-{secrets.token_hex(4)}" if facts is None else facts.run,
        token_sha256=hashlib.sha256(token.encode()).hexdigest(),
        account=site.account,
        region=site.region,
        image=site.image.id,
        certificate=site.certificate,
    )
    roster.create(facts)
    return facts, token


def location_of(directory: RunDirectory) -> str:
    """Return where a run lies, as a tag says it."""
    return re.sub(r"[^A-Za-z0-9 _.:/=+@-]", "-", f"{socket.gethostname()}:{directory.place}")[:256]


def write_bundle(settings: Settings, directory: RunDirectory, site: Site) -> None:
    """Write the files and their description, which comes last. Files that are of the bundle no more are removed."""
    folder = directory.root / BUNDLE
    folder.mkdir(exist_ok=True)
    code = folder / CODE
    write_code(code)
    sources = {CODE: code, **_modules(settings.program, directory)}
    files = [_keep(name, path.read_bytes(), folder) for name, path in sources.items()]
    # A thread for each vCPU. Where types have different numbers of them, libraries take what they find.
    threads = {} if site.vcpus is None else dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(site.vcpus))
    # Its name, its carrier and its program are added by a worker's instance.
    arguments = ["--seed", str(settings.seed), "--device", settings.device]
    arguments += ["--patience", f"{settings.silent_s:g}", "--keep", str(outbox.share(settings.workers))]
    described = {
        "files": [asdict(file) for file in files],
        "program": settings.program.name,
        "arguments": arguments,
        "environment": threads,
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
    if len(found) >= MAX_BUNDLE_FILES:
        raise UsageError(
            f"{program.name} and what it imports from beside it are {len(found)} files; expected fewer than "
            f"{MAX_BUNDLE_FILES}. Make a package of them, and give it to gridml ami build with --package."
        )
    return found


def _can_be_imported(path: Path, entry: Path) -> bool:
    """Whether a file can be a module; folders of tools, such as .ipynb_checkpoints, have others."""
    return path == entry or all(part.isidentifier() for part in path.relative_to(entry).with_suffix("").parts)


def _keep(name: str, payload: bytes, folder: Path) -> BundleFile:
    digest = bundle.digest(payload)
    bundle.write_atomic(folder / digest, payload, durable=False)
    return BundleFile(name, digest)


_CONFIG = "/etc/gridml/instance.json"
_UNIT = "gridml-worker.service"


def master_endpoint(root: Path, address: str | None) -> Address:
    """Return where the SSH server of the master of a run is, as it has written down itself. Raises RunError where it
    has not."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    path = root / "sftp" / "server.json"
    try:
        kept = json.loads(path.read_text())
        public = load_ssh_private_key(kept["private_key"].encode(), None).public_key()
        text = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        port = int(kept["port"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} does not say where the master's SSH server is ({error}). Resume the run.") from error
    host = socket.getfqdn() if address is None else host_and_port(address)[0]
    return Address(host, port, text.split()[1])


def user_data(run: str, door: Address, token: str, orphan_s: float) -> str:
    """Return what cloud-init does at the first boot of an instance: a file for the boot daemon, and its start."""
    config = {"run": run, **asdict(door), "fleet_token": token, "orphan_s": orphan_s}
    written = {
        "path": _CONFIG,
        "owner": "root:gridml",
        "permissions": "0640",
        "content": json.dumps(config, indent=1) + "\n",
    }
    tasks = {"write_files": [written], "runcmd": [["systemctl", "start", "--no-block", _UNIT]]}
    return f"#cloud-config\n{json.dumps(tasks, indent=1)}\n"  # JSON is YAML


class BackgroundCalls:
    """At most one call of a name is under way; its answer is kept until it is asked for."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._calls: dict[str, Future[Any]] = {}

    def busy(self, name: str) -> bool:
        """Whether a call of this name is under way, or its answer was not taken yet."""
        return name in self._calls

    def begin(self, name: str, call: Callable[[], Any]) -> None:
        """Make a call. There must be none of this name."""
        assert name not in self._calls
        self._calls[name] = self._executor.submit(call)

    def take(self, name: str) -> Future[Any] | None:
        """The answer of a call that is done, once; None while there is none, and for one that was forgotten."""
        call = self._calls.get(name)
        if call is None or not call.done():
            return None
        del self._calls[name]
        return None if call.cancelled() else call

    def close(self) -> None:
        """Wait for the call that has begun, forget those that have not. Idempotent."""
        self._executor.shutdown(wait=True, cancel_futures=True)
