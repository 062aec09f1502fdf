"""The client of AWS: every request that gridml makes, as a method that returns plain values and raises CloudError."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import Any

from chunk_model.prices import price_steps
from gridml.errors import RunError, UsageError
from gridml.protocol.foreign import described, printable
from master.backends.ec2.answers import (
    DENIED,
    NOT_SENT,
    CloudError,
    FleetInstance,
    FleetRequest,
    InstanceType,
    ListedInstance,
    MachineImage,
    PoolError,
    SpotPool,
    Subnet,
    TaggedResource,
    Template,
    translate_boto_errors,
)

REGION = "us-east-1"  # one of the few regions that serve the price list, which covers all regions


def question(type: str, region: str) -> dict[str, Any]:
    """Return the parameters of GetProducts for one type: Linux, shared tenancy, no reservation, no paid software."""
    wanted = {
        "instanceType": type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    return {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1", "Filters": filters}


def full_price(products: Iterable[str]) -> float | None:
    """Return the highest on-demand price, in dollars per hour, of products (JSON texts of the price list); None if
    there is none. Raises CloudError if a text cannot be read."""
    try:
        prices = [price for product in products for price in _prices(json.loads(product))]
    except (ArithmeticError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CloudError(
            f"AWS's price list cannot be read: {printable(described(error), 300)}.", "Unread", passing=False
        ) from error
    return max(prices, default=None)


def _prices(product: dict[str, Any]) -> Iterable[float]:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            price = float(dimension.get("pricePerUnit", {}).get("USD", "nan"))
            if dimension.get("unit") == "Hrs" and 0 < price < math.inf:
                yield price


RUN = "gridml:run"  # tag of every resource of a run: the run's name
PLACE = "gridml:place"  # tag of every resource of a run: the run's directory, HOST:PATH
IMAGE = "gridml"  # tag of images made by `gridml ami build`
ALIVE = ("pending", "running", "shutting-down", "stopping", "stopped")  # every state but terminated
# Limits of a call: seconds to connect, seconds to answer, and attempts, between which boto3 backs off.
CONNECT_S, ANSWER_S, ATTEMPTS = 10, 60, 3
_SPOT_VCPUS = "L-34B43A08"  # the code of the quota "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"
_PAGE = 100  # instances per TerminateInstances call
_MOMENT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


class Cloud:
    """EC2 in `region`, by default the region of the AWS configuration. boto3 is imported at the first call."""

    def __init__(self, region: str | None = None) -> None:
        self._asked_region = region

    @property
    def region(self) -> str:
        return str(self._client.meta.region_name)

    @cached_property
    def _session(self) -> Any:
        boto3 = _boto3()
        with translate_boto_errors("ec2", self._asked_region or "the region"):
            return boto3.session.Session(region_name=self._asked_region)

    @cached_property
    def _client(self) -> Any:
        return self._connected("ec2")

    def _connected(self, service: str, region: str | None = None, attempts: int = ATTEMPTS) -> Any:
        from botocore.config import Config

        if self._session.region_name is None:
            raise UsageError(
                "no AWS region is named. Give one: --region eu-central-1, or AWS_REGION, or aws configure."
            )
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=ANSWER_S,
            retries={"mode": "standard", "total_max_attempts": attempts},
            user_agent_extra="gridml",
        )
        with translate_boto_errors(service, self._session.region_name):
            return self._session.client(service, config=config, region_name=region)

    @contextmanager
    def _asking(self, *accepted: str) -> Iterator[None]:
        """Translate exceptions of boto3 into CloudError; refusals whose codes start with one of `accepted` are
        suppressed."""
        try:
            with translate_boto_errors("ec2", self._session.region_name):
                yield
        except CloudError as error:
            if not error.code.startswith(accepted):
                raise

    def account(self) -> str:
        """Return the account id."""
        client = self._connected("sts")
        with translate_boto_errors("sts", self.region):
            return str(client.get_caller_identity()["Account"])

    def images(self, id: str | None) -> list[MachineImage]:
        """Return the image with this id; without an id, the account's images tagged by gridml, newest first."""
        asked = {"ImageIds": [id]} if id else {"Owners": ["self"], "Filters": [_filter("tag-key", [IMAGE])]}
        found = []
        with self._asking("InvalidAMIID"):
            found = self._client.describe_images(**asked)["Images"]
        found.sort(key=lambda each: each.get("CreationDate", ""), reverse=True)
        there = (each for each in found if each.get("State", "available") == "available")
        return [MachineImage(each["ImageId"], each.get("Name", ""), each.get("Architecture", "")) for each in there]

    def instance_types(self, names: Sequence[str], *, all_of_them: bool = True) -> list[InstanceType]:
        """Describe these types. A type that the region lacks raises UsageError; without `all_of_them` it is skipped."""
        if not names:
            return []  # an empty filter would match every type
        wanted = {"InstanceTypes": list(names)} if all_of_them else {"Filters": [_filter("instance-type", names)]}
        try:
            found = self._pages("describe_instance_types", "InstanceTypes", **wanted)
        except CloudError as error:
            if not error.code.startswith("InvalidInstanceType"):
                raise
            raise UsageError(
                f"there is no such instance type in {self.region}: {_after_bracket(str(error))}. Give --instance-types "
                "that the region has, such as c7i.xlarge, or leave the option out."
            ) from None
        return [
            InstanceType(
                each["InstanceType"],
                int(each["VCpuInfo"]["DefaultVCpus"]),
                tuple(each["ProcessorInfo"]["SupportedArchitectures"]),
                "spot" in each.get("SupportedUsageClasses", ["spot"]),
            )
            for each in found
        ]

    def subnets(self, ids: Collection[str]) -> list[Subnet]:
        """Return these subnets; without ids, the default subnet of each zone. Raises UsageError for an unknown id."""
        asked = {"SubnetIds": list(ids)} if ids else {"Filters": [_filter("default-for-az", ["true"])]}
        try:
            found = self._pages("describe_subnets", "Subnets", **asked)
        except CloudError as error:
            if not error.code.startswith("InvalidSubnetID"):
                raise
            raise UsageError(f"a subnet of --subnets is not in {self.region}: {error}") from None
        return [Subnet(each["SubnetId"], each["AvailabilityZone"], each["VpcId"]) for each in found]

    def spot_prices(self, types: Collection[str], since: datetime) -> dict[str, list[list[float]]]:
        """Return the price history of these types' markets: steps of (time, price) by "TYPE/ZONE"."""
        asked = {"InstanceTypes": list(types), "ProductDescriptions": ["Linux/UNIX"], "StartTime": since}
        return price_steps(self._pages("describe_spot_price_history", "SpotPriceHistory", **asked))

    def full_prices(self, types: Collection[str]) -> dict[str, float]:
        """Return on-demand prices in dollars per hour by type. Types that the price list lacks are left out."""
        client, found = self._connected("pricing", REGION, attempts=1), {}  # optional data: no retries
        for type_ in types:
            with translate_boto_errors("pricing", REGION):
                listed = client.get_products(**question(type_, self.region))["PriceList"]
            if (price := full_price(listed)) is not None:
                found[type_] = price
        return found

    def make_group(self, name: str, vpc: str, tags: Mapping[str, str]) -> str:
        """Create a security group that admits no inbound traffic, unless it exists; return its id."""
        asked = {"GroupName": name, "Description": "Workers of a gridml run: nothing gets in", "VpcId": vpc}
        made = {}
        with self._asking("InvalidGroup.Duplicate"):
            made = self._client.create_security_group(**asked, TagSpecifications=_tagged(["security-group"], tags))
        if made:
            return str(made["GroupId"])
        if found := self.groups(tags[RUN]):
            return found[0].id
        raise CloudError(f"EC2 has the security group {name} and does not list it yet.", "NotListedYet", passing=True)

    def groups(self, run: str | None = None) -> list[TaggedResource]:
        """Return the security groups of a run, or of all runs."""
        found = self._pages("describe_security_groups", "SecurityGroups", Filters=[_of(run)])
        return [TaggedResource(each["GroupId"], *_run_and_place(each)) for each in found]

    def remove_group(self, id: str) -> None:
        """Remove a security group. Does nothing while an instance uses it."""
        with self._asking("InvalidGroup.NotFound", "InvalidGroup.InUse", "DependencyViolation", "ResourceInUse"):
            self._client.delete_security_group(GroupId=id)

    def make_template(self, template: Template, tags: Mapping[str, str]) -> None:
        """Create a launch template, unless one of that name exists."""
        data: dict[str, Any] = {
            "ImageId": template.image,
            "UserData": base64.b64encode(template.user_data.encode()).decode(),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1},
            "SecurityGroupIds": [template.security_group],
        }
        if template.key_name is not None:
            data["KeyName"] = template.key_name
        with self._asking("InvalidLaunchTemplateName.AlreadyExistsException"):
            self._client.create_launch_template(
                LaunchTemplateName=template.name,
                LaunchTemplateData=data,
                TagSpecifications=_tagged(["launch-template"], tags),
            )

    def templates(self, run: str | None = None) -> list[TaggedResource]:
        """Return the launch templates of a run, or of all runs."""
        found = self._pages("describe_launch_templates", "LaunchTemplates", Filters=[_of(run)])
        return [TaggedResource(each["LaunchTemplateId"], *_run_and_place(each)) for each in found]

    def remove_template(self, id: str) -> None:
        """Remove a launch template, if it exists."""
        with self._asking("InvalidLaunchTemplateId.NotFound"):
            self._client.delete_launch_template(LaunchTemplateId=id)

    def launch(self, request: FleetRequest) -> tuple[list[FleetInstance], list[PoolError]]:
        """Launch up to `request.count` instances. Returns them, and the errors that explain why there are no more."""
        price = {} if request.max_price is None else {"MaxPrice": f"{request.max_price:.6f}".rstrip("0").rstrip(".")}
        zones = {subnet: zone for zone, subnet in request.subnets.items()}
        kind = "on-demand" if request.on_demand else "spot"
        strategy: dict[str, Any] = {"OnDemandOptions": {"AllocationStrategy": "lowest-price"}}
        if not request.on_demand:
            chosen = {"AllocationStrategy": "price-capacity-optimized", "InstanceInterruptionBehavior": "terminate"}
            strategy = {"SpotOptions": chosen}
        overrides = [
            {"InstanceType": pool.type, "SubnetId": request.subnets[pool.zone], **price} for pool in request.pools
        ]
        with self._asking():
            answer = self._client.create_fleet(
                Type="instant",
                ClientToken=request.token,
                TargetCapacitySpecification={"TotalTargetCapacity": request.count, "DefaultTargetCapacityType": kind},
                LaunchTemplateConfigs=[
                    {
                        "LaunchTemplateSpecification": {"LaunchTemplateName": request.template, "Version": "$Latest"},
                        "Overrides": overrides,
                    }
                ],
                TagSpecifications=_tagged(["instance", "volume", "fleet"], request.tags),
                **strategy,
            )
        launched = [
            FleetInstance(id, _pool(each, zones)) for each in answer.get("Instances", ()) for id in each["InstanceIds"]
        ]
        errors = [
            PoolError(_pool(each, zones), each.get("ErrorCode", ""), each.get("ErrorMessage", ""))
            for each in answer.get("Errors", ())
        ]
        return launched, errors

    def instances(self, run: str | None = None, *, states: Collection[str] = ()) -> list[ListedInstance]:
        """Return the instances of a run, or of all runs. EC2 lists terminated ones for about an hour."""
        filters = [_of(run), *([_filter("instance-state-name", states)] if states else [])]
        found = self._pages("describe_instances", "Reservations", Filters=filters)
        return [_seen(each) for reservation in found for each in reservation["Instances"]]

    def end(self, ids: Sequence[str]) -> None:
        """Terminate instances. Ids of instances that no longer exist are ignored."""
        for begin in range(0, len(ids), _PAGE):
            self._end([*ids[begin : begin + _PAGE]])

    def _end(self, ids: list[str]) -> None:
        try:
            with self._asking():
                self._client.terminate_instances(InstanceIds=ids)
        except CloudError as error:
            if error.code != "InvalidInstanceID.NotFound":
                raise
            for id in ids if len(ids) > 1 else ():  # one unknown id makes EC2 refuse the whole call
                self._end([id])

    def denies(self, action: str, asked: Mapping[str, Any]) -> str | None:
        """Return why an action such as ec2:RunInstances is denied, or could not be checked; None if it is allowed.

        The call is sent with DryRun: EC2 checks the permission first, and executes nothing.
        """
        from botocore import xform_name

        try:
            with self._asking():
                getattr(self._client, xform_name(action.removeprefix("ec2:")))(**asked, DryRun=True)
        except CloudError as error:
            return str(error) if error.code in DENIED or error.code == NOT_SENT else None
        return None

    def spot_quota(self) -> str | None:
        """Describe the account's quota of standard spot vCPUs; None if the credentials do not allow to read it."""
        client = self._connected("service-quotas")
        try:
            with translate_boto_errors("servicequotas", self.region):
                quota = client.get_service_quota(ServiceCode="ec2", QuotaCode=_SPOT_VCPUS)["Quota"]
        except CloudError:
            return None
        return f"{quota['Value']:.0f} vCPUs of standard spot instances"

    def _pages(self, operation: str, result: str, **asked: Any) -> list[Any]:
        with self._asking():
            pages = self._client.get_paginator(operation).paginate(**asked)
            return [each for page in pages for each in page[result]]


def _boto3() -> Any:
    try:
        import boto3
    except ImportError as error:
        raise RunError(
            f"the EC2 back end needs boto3, which cannot be imported ({error}). Install it: pip install boto3 paramiko"
        ) from error
    return boto3


def _pool(each: Mapping[str, Any], zones: Mapping[str, str]) -> SpotPool:
    override = each.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    zone = override.get("AvailabilityZone") or zones.get(override.get("SubnetId", ""), "")
    return SpotPool(each.get("InstanceType") or override.get("InstanceType", ""), zone)


def _seen(each: Mapping[str, Any]) -> ListedInstance:
    return ListedInstance(
        each["InstanceId"],
        *_run_and_place(each),
        each["State"]["Name"],
        each.get("StateReason", {}).get("Code", ""),
        each.get("InstanceType", ""),
        each.get("Placement", {}).get("AvailabilityZone", ""),
        each["LaunchTime"].timestamp(),
        _moment_in(each.get("StateTransitionReason") or ""),
    )


def _moment_in(reason: str) -> float | None:
    """Parse the time in a StateTransitionReason such as "User initiated (2026-04-01 12:00:00 GMT)"."""
    found = _MOMENT.search(reason)
    return None if found is None else datetime.fromisoformat(f"{found[1]}+00:00").timestamp()


def _run_and_place(each: Mapping[str, Any]) -> tuple[str, str]:
    tags = {tag["Key"]: tag["Value"] for tag in each.get("Tags", ())}
    return tags.get(RUN, ""), tags.get(PLACE, "")


def _of(run: str | None) -> dict[str, Any]:
    return _filter("tag-key", [RUN]) if run is None else _filter(f"tag:{RUN}", [run])


def _filter(name: str, values: Iterable[str]) -> dict[str, Any]:
    return {"Name": name, "Values": list(values)}


def _tagged(kinds: Iterable[str], tags: Mapping[str, str]) -> list[dict[str, Any]]:
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": pairs} for kind in kinds]


def _after_bracket(text: str) -> str:
    return text.partition("[")[2].partition("]")[0] or text
