"""Provisioning of a run's instances: site (image, types, network), identity, token, bundle of code, and user data.

The run's first master creates the identity and the token; later masters reuse both. An enrolled instance fetches the
folder `bundle`: gridml's code and the program, each file named by its SHA-256, and `bundle.json` with the real names
and the arguments of the worker. User data contain the master's address, its host key, and the fleet's token.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from gridml.carriers.enrolment import BUNDLE, BUNDLE_DESCRIPTION, FILE_NAME, MAX_BUNDLE_FILES, BundleFile
from gridml.carriers.sftp import Address, host_and_port
from gridml.errors import RunError, UsageError
from gridml.protocol import bundle, outbox
from master.backends.ec2.answers import InstanceType, MachineImage, SpotPool, Subnet
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.options import USUAL_TYPES, Ec2Options
from master.sftp.roster import FOLDER, FleetFacts, Roster
from master.store.rundir import CODE, RunDirectory, program_entries, write_code
from master.store.settings import Settings

_ONE = re.compile(
    r"^# ([a-z0-9-]+)\n(-----BEGIN CERTIFICATE-----\n.*?-----END CERTIFICATE-----\n)", re.MULTILINE | re.DOTALL
)


def certificates() -> dict[str, str]:
    """Return the certificates (PEM) shipped with gridml, by region. Newer regions are missing."""
    text = resources.files(__package__).joinpath("identity_certificates.pem").read_text(encoding="ascii")
    return dict(_ONE.findall(text))


CERTIFICATES = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/regions-certs.html"


@dataclass(frozen=True)
class Site:
    """The account, region, image, types and network of a run's instances."""

    account: str
    region: str
    image: MachineImage
    types: tuple[str, ...]
    vcpus: int | None  # vCPUs of each type, None if they differ
    subnets: Mapping[str, str]  # id of one subnet by zone; all are in `vpc`
    vpc: str
    certificate: str  # PEM; its key signs the instances' identity documents

    @property
    def pools(self) -> list[SpotPool]:
        """All spot pools that instances can come from."""
        return [SpotPool(type_, zone) for type_ in self.types for zone in self.subnets]


def find_site(cloud: Cloud, options: Ec2Options) -> Site:
    """Look up the site of a run. Raises UsageError for an option that names something unknown, RunError if AWS refuses
    or something required is missing."""
    account, region = cloud.account(), cloud.region
    certificate = read_certificate(options.identity_certificate, region)
    types = cloud.instance_types(options.instance_types) if options.instance_types else []
    image = an_image(cloud, options.image, {architecture for each in types for architecture in each.architectures})
    types = types or cloud.instance_types(USUAL_TYPES.get(image.architecture, ()), all_of_them=False)
    usable = _usable(types, image, options)
    subnets, vpc = _subnets(cloud.subnets(options.subnets), options, region)
    vcpus = {each.vcpus for each in usable}
    names = tuple(each.name for each in usable)
    return Site(account, region, image, names, vcpus.pop() if len(vcpus) == 1 else None, subnets, vpc, certificate)


def read_certificate(path: Path | None, region: str) -> str:
    """Return the certificate in a file (PEM), or the one shipped for the region. Raises UsageError if there is none, or
    its key is not RSA."""
    if path is None:
        if (known := certificates().get(region)) is not None:
            return known
        raise UsageError(
            f"gridml came without the certificate of {region}, with which the master verifies instances. Copy the "
            f"certificate called RSA (not DSA or RSA-2048) from {CERTIFICATES} into a file, and name the file: "
            "--identity-certificate FILE."
        )
    from master.sftp.identity import rsa_key

    try:
        rsa_key(text := path.read_text(errors="replace"))
    except (OSError, UsageError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"--identity-certificate {path} cannot be used: {why}. Copy the region's certificate called RSA from "
            f"{CERTIFICATES}."
        ) from error
    return text


def an_image(cloud: Cloud, id: str | None, architectures: Collection[str] = ()) -> MachineImage:
    """Return the image with this id; without an id, gridml's newest, preferably for one of these architectures.
    Raises UsageError for an unknown id, RunError if gridml has made no image in the region."""
    images = cloud.images(id)
    if not images and id is not None:
        raise UsageError(
            f"--image {id} is not in {cloud.region}, or is another account's. Leave it out for the newest that gridml "
            "made there, or make one: gridml ami build."
        )
    if not images:
        raise RunError(
            f"there is no image of gridml's in {cloud.region}. Make one: gridml ami build; or name one with --image."
        )
    return next((image for image in images if image.architecture in architectures), images[0])


def _usable(types: Sequence[InstanceType], image: MachineImage, options: Ec2Options) -> list[InstanceType]:
    """Return the types that run the image, and exist as spot instances unless --on-demand is given."""
    wanted = image.architecture
    unfit = [each for each in types if wanted and wanted not in each.architectures]
    wrong = {each.name: f"is {' or '.join(each.architectures)}" for each in unfit}
    if not options.on_demand:
        wrong |= {each.name: "has no spot instances" for each in types if not each.spot}
    if wrong and (options.instance_types or len(wrong) == len(types)):
        name, why = next(iter(wrong.items()))
        raise UsageError(
            f"--instance-types {name} {why}; the image {image.id} is "
            f"{image.architecture or 'of unknown architecture'}. Name other types, or another --image."
        )
    if not types:
        raise UsageError(
            f"the image {image.id} is for {image.architecture!r}, and the region has none of the types that gridml "
            "uses by default. Name --instance-types, or another --image."
        )
    return [each for each in types if each.name not in wrong]


def _subnets(found: Sequence[Subnet], options: Ec2Options, region: str) -> tuple[dict[str, str], str]:
    """Return the id of one subnet for each wanted zone, and the VPC of all of them."""
    if not found:
        raise RunError(f"there is no default network in {region}. Name --subnets of yours that reach the master.")
    vpcs = sorted({subnet.vpc for subnet in found})
    if len(vpcs) > 1:
        raise UsageError(f"--subnets are of {len(vpcs)} networks ({', '.join(vpcs)}); expected one. Leave some out.")
    subnets = {subnet.zone: subnet.id for subnet in reversed(found)}
    foreign = [zone for zone in options.zones if zone not in subnets]
    if foreign:
        raise UsageError(
            f"--zones got {foreign[0]}, in which {region} has no subnet to launch in; expected one of "
            f"{', '.join(sorted(subnets))}."
        )
    return {zone: subnets[zone] for zone in sorted(options.zones or subnets)}, vpcs[0]


TOKEN = "token"  # file beside the roster; only its owner reads it
"""The secret in user data with which instances enrol. Everybody who may describe the launch template can read it, so an
instance must also present its signed identity document (`master/sftp/identity.py`)."""


def site_of(cloud: Cloud, options: Ec2Options, roster: Roster) -> Site:
    """Look up the site of the run's instances. A later master uses the image of the first, unless the user names
    one."""
    facts = roster.facts
    return find_site(cloud, options if facts is None else replace(options, image=options.image or facts.image))


def provision(directory: RunDirectory, roster: Roster, site: Site) -> tuple[FleetFacts, str]:
    """Return the facts by which the master verifies instances, and the fleet's token. The first master creates both.

    Raises RunError if the run belongs to another account or region.
    """
    facts, path = roster.facts, directory.root / FOLDER / TOKEN
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if facts is not None and (facts.account, facts.region) != (site.account, site.region):
        raise RunError(
            f"{directory.root} has its instances in {facts.region} of account {facts.account}, and the credentials are "
            f"of {site.account} in {site.region}. Use those of {facts.account}."
        )
    token = path.read_text(errors="replace") if facts is not None and path.exists() else secrets.token_urlsafe(32)
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
    """Return the run's directory as HOST:PATH, in the characters and length that tags allow."""
    return re.sub(r"[^A-Za-z0-9 _.:/=+@-]", "-", f"{socket.gethostname()}:{directory.place}")[:256]


def write_bundle(settings: Settings, directory: RunDirectory, site: Site) -> None:
    """Write the files of the bundle, then their description, and remove all other files of its folder."""
    folder = directory.root / BUNDLE
    folder.mkdir(exist_ok=True)
    code = folder / CODE
    write_code(code)
    sources = {CODE: code, **_modules(settings.program, directory)}
    files = [_keep(name, path.read_bytes(), folder) for name, path in sources.items()]
    # One thread per vCPU. If the types differ in vCPUs, libraries use the cores that they find on the instance.
    threads = {} if site.vcpus is None else dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(site.vcpus))
    # The instance adds the worker's name, carrier and program.
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
    """Return the program and its own modules by relative path, the program's own file first. Raises UsageError for
    names or a number of files that instances would reject, before any instance is paid for."""
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
    """Return whether a file can be imported; files in folders such as .ipynb_checkpoints cannot be."""
    return path == entry or all(part.isidentifier() for part in path.relative_to(entry).with_suffix("").parts)


def _keep(name: str, payload: bytes, folder: Path) -> BundleFile:
    digest = bundle.digest(payload)
    bundle.write_atomic(folder / digest, payload, durable=False)
    return BundleFile(name, digest)


_CONFIG = "/etc/gridml/instance.json"  # read by the boot daemon of the image (`ami/`)
_UNIT = "gridml-worker.service"


def master_endpoint(root: Path, address: str | None) -> Address:
    """Return the address and host key of the master's SSH server, from the file that the server writes. Raises RunError
    if that file cannot be read."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    path = root / "sftp" / "server.json"
    try:
        kept = json.loads(path.read_text())
        public = load_ssh_private_key(kept["private_key"].encode(), None).public_key()
        text = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        port = int(kept["port"])
    except Exception as error:  # parsers of damaged keys raise many types
        raise RunError(f"{path} does not say where the master's SSH server is ({error}). Resume the run.") from error
    host = socket.getfqdn() if address is None else host_and_port(address)[0]
    return Address(host, port, text.split()[1])


def user_data(run: str, endpoint: Address, token: str, orphan_s: float) -> str:
    """Return user data that make cloud-init write the boot daemon's configuration and start the daemon."""
    config = {"run": run, **asdict(endpoint), "fleet_token": token, "orphan_s": orphan_s}
    written = {
        "path": _CONFIG,
        "owner": "root:gridml",
        "permissions": "0640",
        "content": json.dumps(config, indent=1) + "\n",
    }
    tasks = {"write_files": [written], "runcmd": [["systemctl", "start", "--no-block", _UNIT]]}
    return f"#cloud-config\n{json.dumps(tasks, indent=1)}\n"  # JSON is YAML


class BackgroundCalls:
    """Named background calls: blocking calls of AWS run on an executor, and the master polls for their results."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._calls: dict[str, Future[Any]] = {}  # at most one per name, until its result is taken

    def busy(self, name: str) -> bool:
        """Return whether a call of this name runs, or has ended and its result was not taken yet."""
        return name in self._calls

    def begin(self, name: str, call: Callable[[], Any]) -> None:
        """Start a call. No call of this name may be busy."""
        assert name not in self._calls
        self._calls[name] = self._executor.submit(call)

    def take(self, name: str) -> Future[Any] | None:
        """Return a finished call, once; None while it runs, and if it was cancelled."""
        call = self._calls.get(name)
        if call is None or not call.done():
            return None
        del self._calls[name]
        return None if call.cancelled() else call

    def close(self) -> None:
        """Wait for the calls that run, and cancel the calls that have not started. Idempotent."""
        self._executor.shutdown(wait=True, cancel_futures=True)
