"""The API of the local EC2 where it differs from moto: idempotency tokens, lack of capacity, price history."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3")
pytest.importorskip("flask")
pytest.importorskip("moto")

from pools.ec2.api import NO_CAPACITY, Api, SpotPrices  # noqa: E402

PRICES = SpotPrices({"c7i.xlarge": 0.08})


@pytest.fixture
def api() -> Iterator[tuple[Api, Any]]:
    """An API on a free port of this machine, and a client of it."""
    import threading

    from moto.ec2.models import ec2_backends
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    said: list[str] = []
    api = Api(DomainDispatcherApplication(create_backend_app), PRICES, said.append)
    server = make_server("127.0.0.1", 0, api, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    try:
        yield api, boto3.client("ec2", endpoint_url=f"http://127.0.0.1:{server.server_port}", **keys)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        ec2_backends["123456789012"]["us-east-1"].reset()


def fleet(ec2: Any, token: str, size: int = 2) -> tuple[list[str], list[Any]]:
    """Return the instances of a fleet, and its errors."""
    templates = ec2.describe_launch_templates()["LaunchTemplates"]
    if not templates:
        image = ec2.register_image(Name="test", RootDeviceName="/dev/xvda")["ImageId"]
        ec2.create_launch_template(LaunchTemplateName="test", LaunchTemplateData={"ImageId": image})
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    answer = ec2.create_fleet(
        Type="instant",
        ClientToken=token,
        TargetCapacitySpecification={"TotalTargetCapacity": size, "DefaultTargetCapacityType": "spot"},
        SpotOptions={"AllocationStrategy": "price-capacity-optimized"},
        LaunchTemplateConfigs=[
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": "test", "Version": "$Latest"},
                "Overrides": [{"InstanceType": type, "SubnetId": subnet} for type in ("c7i.xlarge", "c6i.xlarge")],
            }
        ],
    )
    return [id for each in answer.get("Instances", ()) for id in each["InstanceIds"]], answer.get("Errors", [])


def test_a_token_that_comes_again_launches_nothing_more(api: tuple[Api, Any]) -> None:
    _, ec2 = api
    first, _ = fleet(ec2, "one")
    again, _ = fleet(ec2, "one")
    other, _ = fleet(ec2, "two")
    assert first == again
    assert len({*first, *other}) == 4


def test_capacity_lacks_as_often_as_was_said_in_every_pool_that_was_asked_for(api: tuple[Api, Any]) -> None:
    cloud, ec2 = api
    cloud.refuse(1)
    launched, errors = fleet(ec2, "one")
    assert not launched
    assert {each["ErrorCode"] for each in errors} == {NO_CAPACITY}
    pools = [each["LaunchTemplateAndOverrides"]["Overrides"] for each in errors]
    assert {each["InstanceType"] for each in pools} == {"c7i.xlarge", "c6i.xlarge"}
    assert all(each["SubnetId"].startswith("subnet-") for each in pools)
    assert len(fleet(ec2, "one")[0]) == 2, "a token of a fleet that brought nothing is not used up"


def test_prices_reach_back_and_are_the_same_for_all_clients(api: tuple[Api, Any]) -> None:
    _, ec2 = api
    now = datetime.now(UTC)
    asked = {
        "InstanceTypes": ["c7i.xlarge"],
        "AvailabilityZone": "us-east-1a",
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": now - timedelta(days=2),
    }
    history = ec2.describe_spot_price_history(**asked)["SpotPriceHistory"]
    assert history == ec2.describe_spot_price_history(**asked)["SpotPriceHistory"]
    times = [each["Timestamp"] for each in history]
    assert times == sorted(times, reverse=True)
    assert times[-1] <= now - timedelta(days=2) < times[-2], "the price in force at the start is there"
    assert len({each["SpotPrice"] for each in history}) > 1


def test_a_dearer_zone_is_dearer_at_every_time() -> None:
    end = datetime(2026, 3, 1, tzinfo=UTC)
    by_zone = [PRICES.history("c7i.xlarge", zone, end - timedelta(days=3), end) for zone in PRICES.zones]
    assert all(cheap[1] < dear[1] for cheap, dear in zip(*by_zone, strict=True))
