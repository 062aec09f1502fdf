"""The site of a run's instances: image, types, subnets and certificate, looked up unless options name them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from gridml.errors import RunError, UsageError
from master.backends.ec2.answers import InstanceType, MachineImage, SpotPool, Subnet
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.options import USUAL_TYPES, Ec2Options

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
