"""What a run on EC2 needs, looked at one by one: each says what was found, or what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridml.carriers.registry import CARRIERS
from gridml.errors import GridmlError
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.errors import CloudError
from master.backends.ec2.options import USUAL_TYPES, Ec2Options
from master.backends.ec2.site import read_certificate

_NO_INSTANCE, _NO_IMAGE, _NO_TEMPLATE = "i-00000000000000000", "ami-00000000000000000", "lt-00000000000000000"

PERMISSIONS: dict[str, Callable[[Any], Any]] = {
    "ec2:DescribeInstanceTypes": lambda ec2: ec2.describe_instance_types(DryRun=True),
    "ec2:DescribeSubnets": lambda ec2: ec2.describe_subnets(DryRun=True),
    "ec2:DescribeSpotPriceHistory": lambda ec2: ec2.describe_spot_price_history(DryRun=True),
    "ec2:DescribeInstances": lambda ec2: ec2.describe_instances(DryRun=True),
    "ec2:DescribeLaunchTemplates": lambda ec2: ec2.describe_launch_templates(DryRun=True),
    "ec2:DescribeSecurityGroups": lambda ec2: ec2.describe_security_groups(DryRun=True),
    "ec2:CreateSecurityGroup": lambda ec2: ec2.create_security_group(
        GroupName="gridml-check", Description="never made", DryRun=True
    ),
    "ec2:CreateLaunchTemplate": lambda ec2: ec2.create_launch_template(
        LaunchTemplateName="gridml-check", LaunchTemplateData={"ImageId": _NO_IMAGE}, DryRun=True
    ),
    "ec2:CreateFleet": lambda ec2: ec2.create_fleet(
        Type="instant",
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
        LaunchTemplateConfigs=[
            {"LaunchTemplateSpecification": {"LaunchTemplateId": _NO_TEMPLATE, "Version": "$Latest"}}
        ],
        DryRun=True,
    ),
    "ec2:RunInstances": lambda ec2: ec2.run_instances(
        ImageId=_NO_IMAGE, InstanceType=USUAL_TYPES["x86_64"][0], MinCount=1, MaxCount=1, DryRun=True
    ),
}
"""Calls that change nothing: EC2 says of each whether it would be allowed."""


@dataclass(frozen=True)
class Check:
    """One thing that a run needs: whether it is there, and what was found."""

    what: str
    good: bool
    found: str


def checks(region: str | None, image: str | None, certificate: Path | None, address: str | None) -> Iterator[Check]:
    """Look at one thing after the other; without credentials there is only the first."""
    options = Ec2Options(region=region, image=image, identity_certificate=certificate)
    cloud = Cloud(region)
    yield (first := _look("credentials", lambda: f"account {cloud.account()}, region {cloud.region}"))
    if not first.good:
        return
    for action, call in PERMISSIONS.items():
        refused = cloud.denies(call)
        yield Check(action, refused is None, refused or "allowed")
    yield _look("image", lambda: _image(cloud, image))
    yield _look("network", lambda: f"{len(cloud.subnets(()))} zones with a default subnet")
    yield _look("quota", lambda: cloud.spot_quota() or "not known: the credentials need not be allowed to read it")
    yield _look("prices", lambda: _full_price(cloud))
    yield _look("certificate", lambda: _certificate(options.identity_certificate, cloud.region))
    yield _look("address", lambda: _address(address))


def _look(what: str, look: Callable[[], str]) -> Check:
    try:
        return Check(what, True, look())
    except GridmlError as error:
        return Check(what, False, str(error))


def _image(cloud: Cloud, id: str | None) -> str:
    from master.backends.ec2.site import an_image

    image = an_image(cloud, id)
    return f"{image.id} ({image.name}, {image.architecture})"


def _full_price(cloud: Cloud) -> str:
    type_ = USUAL_TYPES["x86_64"][0]
    try:
        return f"an hour of {type_} on demand is ${cloud.full_prices([type_])[type_]:.4g}"
    except (CloudError, KeyError):
        return "on demand not known: reports then do not compare, and --on-demand goes with no --budget"


def _certificate(path: Path | None, region: str) -> str:
    read_certificate(path, region)
    return f"the one of {region} that came with gridml" if path is None else str(path)


def _address(address: str | None) -> str:
    carrier = CARRIERS.find("sftp")
    carrier.check_address(address)
    carrier.check_advertised(address, nearby=False)
    return "instances are told a name or an address that others may reach; whether its port is open shows in a run"
