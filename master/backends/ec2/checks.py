"""Commands around a run on EC2: `gridml ec2 check` and `gridml ec2 sweep`, and the dry run of `gridml launch`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gridml.carriers.registry import CARRIERS
from gridml.errors import GridmlError, RunError, UsageError
from gridml.model.loading import load
from gridml.protocol.foreign import printable
from master.backends.ec2.answers import CloudError
from master.backends.ec2.budget import full_prices, offers
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.options import USUAL_TYPES, Ec2Options
from master.backends.ec2.provisioning import find_site, read_certificate
from master.sftp.spending import estimated
from master.store.settings import Settings

_NO_IMAGE, _NO_TEMPLATE = "ami-00000000000000000", "lt-00000000000000000"

PERMISSIONS: Mapping[str, Mapping[str, Any]] = {
    "ec2:DescribeInstanceTypes": {},
    "ec2:DescribeSubnets": {},
    "ec2:DescribeSpotPriceHistory": {},
    "ec2:DescribeInstances": {},
    "ec2:DescribeLaunchTemplates": {},
    "ec2:DescribeSecurityGroups": {},
    "ec2:CreateSecurityGroup": {"GroupName": "gridml-check", "Description": "never made"},
    "ec2:CreateLaunchTemplate": {
        "LaunchTemplateName": "gridml-check",
        "LaunchTemplateData": {"ImageId": _NO_IMAGE},
    },
    "ec2:CreateFleet": {
        "Type": "instant",
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
        "LaunchTemplateConfigs": [
            {"LaunchTemplateSpecification": {"LaunchTemplateId": _NO_TEMPLATE, "Version": "$Latest"}}
        ],
    },
    "ec2:RunInstances": {
        "ImageId": _NO_IMAGE,
        "InstanceType": USUAL_TYPES["x86_64"][0],
        **{"MinCount": 1, "MaxCount": 1},
    },
}
"""Parameters of a call with DryRun, by action. The resources that they name do not exist, so nothing is created."""


@dataclass(frozen=True)
class Requirement:
    """The result of one check."""

    what: str  # name of the requirement
    good: bool
    found: str  # result of the check, or what to do


def checks(
    region: str | None, image: str | None, certificate: Path | None, address: str | None
) -> Iterator[Requirement]:
    """Yield the results of all checks; if there are no credentials, only the result of the first check."""
    options = Ec2Options(region=region, image=image, identity_certificate=certificate)
    cloud = Cloud(region)
    yield (first := _result("credentials", lambda: f"account {cloud.account()}, region {cloud.region}"))
    if not first.good:
        return
    for action, asked in PERMISSIONS.items():
        refused = cloud.denies(action, asked)
        yield Requirement(action, refused is None, refused or "allowed")
    yield _result("image", lambda: _image(cloud, image))
    yield _result("network", lambda: f"{len(cloud.subnets(()))} zones with a default subnet")
    yield _result(
        "quota", lambda: cloud.spot_quota() or "not known: the credentials do not allow to read it, and need not"
    )
    yield _result("prices", lambda: _full_price(cloud))
    yield _result("certificate", lambda: _certificate(options.identity_certificate, cloud.region))
    yield _result("address", lambda: _address(address))


def _result(what: str, probe: Callable[[], str]) -> Requirement:
    try:
        return Requirement(what, True, probe())
    except GridmlError as error:
        return Requirement(what, False, str(error))


def _image(cloud: Cloud, id: str | None) -> str:
    from master.backends.ec2.provisioning import an_image

    image = an_image(cloud, id)
    return f"{image.id} ({image.name}, {image.architecture})"


def _full_price(cloud: Cloud) -> str:
    type_ = USUAL_TYPES["x86_64"][0]
    try:
        return f"an hour of {type_} on demand is ${cloud.full_prices([type_])[type_]:.4g}"
    except (CloudError, KeyError):
        return "on demand not known: reports then do not compare, and --on-demand does not work with --budget"


def _certificate(path: Path | None, region: str) -> str:
    read_certificate(path, region)
    return f"the certificate of {region} that came with gridml" if path is None else str(path)


def _address(address: str | None) -> str:
    carrier = CARRIERS.find("sftp")
    carrier.check_address(address)
    carrier.check_advertised(address, nearby=False)
    return "instances get a name or address that they can probably reach; only a run shows whether its port is open"


_Region = Annotated[
    str | None, typer.Option(help="AWS region. Default: AWS_REGION or the AWS configuration.", show_default=False)
]


def sweep(
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this run, by its tag gridml:run.", show_default=False)
    ] = None,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Only runs whose instances were all launched longer ago, such as 1h.")
    ] = "0s",
    yes: Annotated[bool, typer.Option("--yes", help="Remove the resources. Default: only list them.")] = False,
    region: _Region = None,
) -> None:
    """Find resources that ended runs have left on EC2, and remove them.

    These are instances, launch templates and security groups with the tag gridml:run. Runs that a master drives are
    not touched, and runs of other machines only if they are named.
    """
    from chunk_model.lifetime import LifetimeError, parse_duration
    from master.backends.ec2.cleanup import find, swept
    from master.backends.ec2.cloud import Cloud

    try:
        older_than_s = parse_duration(older_than)
    except LifetimeError as error:
        raise UsageError(f"--older-than: {error}") from error
    cloud = Cloud(region)
    found = find(cloud, run, older_than_s, time.time())
    if not found:
        _print(f"Nothing of gridml's is left in {cloud.region}.")
    for each in found:
        if not each.swept:
            _print(f"{each.run}: {each.made}; stays: {each.reason}")
        elif yes:
            _print(f"{each.run}: removed {swept(cloud, each)}")
        else:
            _print(f"{each.run}: {each.made}; would be removed with --yes: {each.reason}")


def check(
    region: _Region = None,
    image: Annotated[str | None, typer.Option(metavar="AMI", help="Default: the newest.", show_default=False)] = None,
    identity_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: the region's, from gridml.", show_default=False)
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="This machine's, for instances.", show_default=False)
    ] = None,
) -> None:
    """Check the requirements of gridml launch: credentials, permissions, an image, an address.

    Permissions are checked with DryRun, so nothing is created.
    """
    failed = 0
    for each in checks(region, image, identity_certificate, address):
        failed += not each.good
        _print(f"{'ok     ' if each.good else 'MISSING'} {each.what}: {each.found}")
    if failed:
        raise RunError(f"{failed} of these must be fixed before gridml launch can work; see docs/ec2.md.")


def _print(text: str) -> None:
    typer.echo(printable(text, sys.maxsize))


def describe(settings: Settings, cloud: Cloud) -> str:
    """Describe what would be launched. Raises what loading the program or building its graph raises."""
    load(settings.program).build(settings.program)  # raises the program's errors before anything is printed
    options = Ec2Options.among(settings.options)
    site = find_site(cloud, options)
    kind = "on-demand instances" if options.on_demand else "spot instances, price-capacity-optimized"
    lines = [
        f"# {settings.workers} {kind}, in {site.region} of account {site.account}",
        f"image           {site.image.id} ({site.image.name}, {site.image.architecture})",
        f"types           {', '.join(site.types)}",
        f"subnets         {', '.join(f'{subnet} ({zone})' for zone, subnet in site.subnets.items())}",
        f"security group  {options.security_group or 'one of its own, which lets nothing in'}",
    ]
    if options.max_price is not None:
        lines.append(f"at most         ${options.max_price:g} for an hour of an instance")
    if options.on_demand:
        return "\n".join([*lines, _on_demand(full_prices(cloud, site), settings.workers)])
    return "\n".join([*lines, *estimated(offers(cloud, site, options), settings.workers, options.budget)])


def _on_demand(full: Mapping[str, float], instances: int) -> str:
    if not full:
        return "what that costs is not known: the credentials do not allow pricing:GetProducts"
    cheapest, dearest = min(full, key=full.__getitem__), max(full, key=full.__getitem__)
    low, high = instances * full[cheapest], instances * full[dearest]
    return f"{instances} instances: ${low:.4g}/h as {cheapest}, ${high:.4g}/h as {dearest}"
