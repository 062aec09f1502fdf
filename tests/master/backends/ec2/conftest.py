"""A fake AWS account (moto) with an image of gridml's, and back ends of runs in it under a clock that tests move."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from master.backends.ec2.backend import Ec2, Ec2Environment
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.options import Ec2Options
from master.sftp.roster import Enrolment, GoodbyeMessage, Roster
from master.sftp.server import MailServer
from master.state.jobs import JobEvent, State
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from tests.support.aws_models import keep_models

REGION = "us-east-1"
PROGRAM = Path(__file__).parents[3] / "programs" / "tally.py"
BEGAN_S = 1_800_000_000.0


class AtOnce(Executor):
    """Background calls that run immediately."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        try:
            answer.set_result(call(*args, **kwargs))
        except Exception as error:
            answer.set_exception(error)
        return answer


@dataclass
class Aws:
    """The account's content, and a record of its calls."""

    client: Any
    image: str
    certificate: Path
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    refusals: dict[str, tuple[str, str]] = field(default_factory=dict)  # by operation: code and message
    pool_errors: dict[tuple[str, str], str] = field(default_factory=dict)  # by type and zone: code
    prices: dict[str, float] = field(default_factory=dict)  # by type: dollars an hour; of others 0.07
    full_price: float | None = 0.2  # dollars an hour on demand, of every type; None: the price list has none
    capacity: int | None = None  # the largest number of instances
    unlisted: bool = False  # True: instances exist but are not described yet

    def options(self, **changed: Any) -> Ec2Options:
        return Ec2Options(**{"region": REGION, "identity_certificate": self.certificate, **changed})

    def asked(self, operation: str) -> list[dict[str, Any]]:
        """Return the parameters of all calls of an operation."""
        return [parameters for name, parameters in self.calls if name == operation]

    def states(self, run: str) -> dict[str, str]:
        """Return the instances of a run, and their states."""
        found = self.client.describe_instances(Filters=[{"Name": "tag:gridml:run", "Values": [run]}])
        return {i["InstanceId"]: i["State"]["Name"] for r in found["Reservations"] for i in r["Instances"]}

    def take(self, id: str, reason: str = "Server.SpotInstanceTermination", *, at_s: float | None = None) -> None:
        """End an instance as EC2 does, which moto never does by itself."""
        from moto.ec2.models import ec2_backends

        self.client.terminate_instances(InstanceIds=[id])
        instance = ec2_backends["123456789012"][REGION].get_instance(id)
        instance.state_reason.code = reason
        if at_s is not None:
            at = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
            instance._reason = f"Service initiated ({at:%Y-%m-%d %H:%M:%S} GMT)"


class NotYet(Executor):
    """Background calls that run at the end, when they are collected."""

    def __init__(self) -> None:
        self.calls: list[tuple[Future[Any], Callable[..., Any]]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append((answer := Future(), call))
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Run the first call, which counts as started, and drop the others."""
        for number, (answer, call) in enumerate(self.calls):
            if number:
                answer.cancel()
                answer.set_running_or_notify_cancel()
            else:
                answer.set_result(call())


class Fleet:
    """A back end under a clock that only its test moves; `poll` collects its events."""

    def __init__(self, aws: Aws, root: Path, options: Ec2Options, instances: int = 4) -> None:
        self.aws = aws
        self.now = BEGAN_S
        self.directory = RunDirectory(root)
        if not (root / "ledger.db").exists():
            root.mkdir(parents=True, exist_ok=True)
        server = MailServer(root, "127.0.0.1")
        server.close()
        self.settings = Settings(
            program=PROGRAM, backend="ec2", workers=instances, options=options, address="192.0.2.7:2222"
        )
        self.events: list[JobEvent] = []
        self.news: list[str] = []
        self.roster = Roster(root)
        self.backend = self.another()

    def another(self, executor: Callable[[], Executor] = AtOnce) -> Ec2:
        """Return a back end for the next master."""
        world = Ec2Environment(Cloud(REGION), clock=lambda: self.now, rest=self.rest, executor=executor)
        return Ec2(self.settings, self.directory, world)

    def another_that_is_slow(self) -> Ec2:
        """Return a back end for the next master, whose calls are only made at its end."""
        return self.another(NotYet)

    def rest(self, seconds: float) -> None:
        self.now += seconds

    def poll(self, seconds: float = 0.5) -> list[JobEvent]:
        """Let time pass, and poll."""
        self.now += seconds
        events = self.backend.poll()
        self.events += events
        self.news += self.backend.notices()
        return events

    def polls(self, count: int, seconds: float = 0.5) -> None:
        for _ in range(count):
            self.poll(seconds)

    def submit(self, *workers: str) -> None:
        for worker in workers:
            self.backend.submit(worker)
        self.polls(3)

    def id(self, worker: str) -> str:
        launched = (self.roster.instance(id) for id in self.roster.ids())
        (found,) = [each.id for each in launched if each is not None and each.worker == worker]
        return found

    def enrol_quietly(self, worker: str) -> None:
        """Write the record that the master's server writes when an instance has enrolled."""
        self.roster.keep(Enrolment(self.id(worker), "AAAA", "192.0.2.9", self.now))

    def enrol(self, *workers: str) -> None:
        """Enrol the instances of workers, and poll."""
        for worker in workers:
            self.enrol_quietly(worker)
        self.polls(2)

    def goodbye(self, worker: str, status: int = 0, *, evicted: bool = False, why: str = "") -> None:
        self.roster.keep(GoodbyeMessage(self.id(worker), status, why, self.now, evicted))

    def states(self, worker: str) -> list[State]:
        return [event.state for event in self.events if event.worker == worker]

    def end(self, worker: str) -> JobEvent:
        (event,) = [event for event in self.events if event.worker == worker and event.state.ended]
        return event


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate, like those of AWS in each region."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Made up")])
    began = datetime.datetime(2026, 1, 1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, began, began.replace(year=2096)).sign(key, SHA256())
    path = tmp_path_factory.mktemp("certificate") / "rsa.pem"
    path.write_bytes(made.public_bytes(Encoding.PEM))
    return path


def an_image(client: Any, name: str = "gridml-worker", architecture: str = "x86_64") -> str:
    """Make an image like those of gridml; return its id."""
    root = {"RootDeviceName": "/dev/xvda", "VirtualizationType": "hvm"}
    image = client.register_image(Name=name, Architecture=architecture, **root)["ImageId"]
    client.create_tags(Resources=[image], Tags=[{"Key": "gridml", "Value": "0.1.0"}])
    from moto.ec2.models import ec2_backends

    ec2_backends["123456789012"][REGION].amis[image].architecture = architecture  # which moto forgets
    return str(image)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, certificate: Path) -> Iterator[Aws]:
    """An account with an image that records its calls, and can be set to refuse some."""
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # hundreds, of Amazon's
    keep_models(monkeypatch)
    with moto.mock_aws():
        client = boto3.client("ec2", region_name=REGION)
        image = an_image(client)
        account = Aws(client, image, certificate)
        _watch(account, monkeypatch)
        yield account


def _watch(account: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record each call of gridml, refuse it if set so, and remove pools from requests to moto."""
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    call = BaseClient._make_api_call

    def watched(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        if client is account.client:
            return call(client, operation, parameters)
        account.calls.append((operation, parameters))
        if operation in account.refusals:
            code, message = account.refusals[operation]
            raise ClientError({"Error": {"Code": code, "Message": message}}, operation)
        if operation == "GetProducts":
            return _price_list(account)
        if operation == "DescribeSpotPriceHistory" and not parameters.get("DryRun"):
            return _history(account, parameters)
        if operation == "DescribeInstances" and account.unlisted:
            return {"Reservations": []}
        if operation == "CreateFleet" and account.capacity is not None:
            parameters = _within_capacity(account, parameters)
        if operation == "CreateFleet" and account.pool_errors:
            return _with_pool_errors(account, lambda given: call(client, operation, given), parameters)
        return call(client, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", watched)


def _history(account: Aws, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a price of each pool at the requested time; moto's own prices are constant, of 2006."""
    zones = [each["AvailabilityZone"] for each in account.client.describe_subnets()["Subnets"]]
    entries = [
        {
            "InstanceType": type_,
            "AvailabilityZone": zone,
            "SpotPrice": f"{account.prices.get(type_, 0.07):.6f}",
            "Timestamp": parameters["StartTime"],
        }
        for type_ in parameters["InstanceTypes"]
        for zone in zones
    ]
    return {"SpotPriceHistory": entries}


def _price_list(account: Aws) -> dict[str, Any]:
    """Answer like the price list, which moto does not have."""
    return {
        "FormatVersion": "aws_v1",
        "PriceList": [] if account.full_price is None else [_product(account.full_price)],
    }


def _product(dollars: float) -> str:
    """Return a shortened product of the price list: its on-demand price and half of that as the reserved price."""

    def term(unit: str, price: float) -> dict[str, Any]:
        dimension = {"unit": unit, "beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": f"{price:.10f}"}}
        return {"offerTermCode": "JRTCKXETXF", "priceDimensions": {"ABC.DEF.6YS6EN2CT7": dimension}}

    terms = {"OnDemand": {"ABC.DEF": term("Hrs", dollars)}, "Reserved": {"ABC.GHI": term("Hrs", dollars / 2)}}
    return json.dumps({"product": {"productFamily": "Compute Instance"}, "serviceCode": "AmazonEC2", "terms": terms})


@pytest.fixture
def product() -> Callable[[float], str]:
    """Return a product with this on-demand price in dollars per hour."""
    return _product


def _within_capacity(account: Aws, parameters: dict[str, Any]) -> dict[str, Any]:
    """Reduce a request to the available capacity; without any, remove all pools."""
    found = account.client.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["running"]}])
    room = (account.capacity or 0) - sum(len(each["Instances"]) for each in found["Reservations"])
    target = parameters["TargetCapacitySpecification"]
    zones = [each["AvailabilityZone"] for each in account.client.describe_subnets()["Subnets"]]
    types = {each["InstanceType"] for each in parameters["LaunchTemplateConfigs"][0]["Overrides"]}
    none_left = {(type_, zone): "InsufficientInstanceCapacity" for type_ in types for zone in zones}
    account.pool_errors = {} if room > 0 else none_left
    fewer = {**target, "TotalTargetCapacity": min(target["TotalTargetCapacity"], max(room, 1))}
    return {**parameters, "TargetCapacitySpecification": fewer}


def _with_pool_errors(account: Aws, call: Callable[[dict[str, Any]], Any], parameters: dict[str, Any]) -> Any:
    """Answer like EC2 for pools without capacity: an error for each, and instances of the others."""
    zones = {each["SubnetId"]: each["AvailabilityZone"] for each in account.client.describe_subnets()["Subnets"]}
    (config,) = parameters["LaunchTemplateConfigs"]
    errors, others = [], []
    for override in config["Overrides"]:
        code = account.pool_errors.get((override["InstanceType"], zones[override["SubnetId"]]))
        if code is None:
            others.append(override)
        else:
            said = {
                "LaunchTemplateAndOverrides": {"Overrides": override},
                "ErrorCode": code,
                "ErrorMessage": "none left",
            }
            errors.append({**said, "Lifecycle": "spot"})
    if not others:
        return {"FleetId": "fleet-1", "Instances": [], "Errors": errors}
    given = {**parameters, "LaunchTemplateConfigs": [{**config, "Overrides": others}]}
    return {**call(given), "Errors": errors}


@pytest.fixture
def fleet(aws: Aws, tmp_path: Path) -> Fleet:
    """A back end of a new run."""
    return Fleet(aws, tmp_path / "run", aws.options(instance_types=("c5.xlarge", "m5.xlarge")))
