"""Prices are kept beside the roster, and a budget is held: first no more instances, then all leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gridml.errors import UsageError
from master.backends.base import State
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.money import check_affordable
from master.backends.ec2.site import find_site
from master.decisions.spending import spent
from master.sftp.fleet_costs import kept_prices, stays


@pytest.fixture
def thrifty(fleet: Any) -> Any:
    """A run with a budget of a dollar, at $0.07 an hour of an instance."""
    fleet.backend.leave()
    fleet.settings = replace(fleet.settings, options=replace(fleet.settings.options, budget=1.0))
    fleet.backend = fleet.another()
    return fleet


def test_prices_are_kept_of_the_markets_that_instances_come_from(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.polls(3)
    prices = kept_prices(fleet.directory.root)
    assert set(prices) == {f"{type_}/us-east-1{zone}" for type_ in ("c5.xlarge", "m5.xlarge") for zone in "abcdef"}
    fleet.polls(10, 360.0)
    assert len(fleet.aws.asked("DescribeSpotPriceHistory")) >= 5
    assert spent([stay for _, stay in stays(fleet.roster)], kept_prices(fleet.directory.root), fleet.now) > 0


def test_without_a_budget_any_number_is_afforded(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.polls(20, 3600.0)
    assert fleet.backend.affords is None


def test_a_budget_first_stops_launches_and_then_sends_all_home(thrifty: Any) -> None:
    fleet = thrifty
    fleet.submit("w1", "w2")
    fleet.enrol("w1", "w2")
    afforded = []
    while fleet.backend.affords != 0:
        fleet.poll(60.0)
        afforded.append(fleet.backend.affords)
        assert fleet.now < 1_800_000_000.0 + 8 * 3600.0
    assert afforded[0] is None and 2 in afforded  # those that are there may stay for a while
    prices = kept_prices(fleet.directory.root)
    paid = spent([stay for _, stay in stays(fleet.roster)], prices, fleet.now)
    assert 0.95 < paid < 1.0
    assert any("ask for no more" in said for said in fleet.news) and any("leave now" in said for said in fleet.news)
    assert fleet.backend.exhausted() is None  # they are still there
    for worker in ("w1", "w2"):
        fleet.backend.cancel(worker, grace_s=120.0)  # as the fleet does with those that are too many
        fleet.farewell(worker, 0)
    fleet.polls(4, 2.0)
    assert [fleet.end(worker).state for worker in ("w1", "w2")] == [State.EVICTED] * 2
    assert "the budget ends the run: $" in fleet.backend.exhausted()
    assert "gridml resume r --budget" in fleet.backend.more_machines("gridml resume r")
    assert spent([stay for _, stay in stays(fleet.roster)], prices, fleet.now) <= 1.0


def test_nothing_is_launched_when_the_budget_allows_no_more(thrifty: Any) -> None:
    fleet = thrifty
    fleet.submit("w1", "w2")
    fleet.enrol("w1", "w2")
    while fleet.backend.affords is None:
        fleet.poll(60.0)
    asked = len(fleet.aws.asked("CreateFleet"))
    fleet.submit("w3")
    fleet.polls(5, 2.0)
    assert len(fleet.aws.asked("CreateFleet")) == asked


def test_a_budget_that_pays_for_no_hour_is_refused(aws: Any) -> None:
    aws.prices["c5.xlarge"] = 0.09
    cloud, options = Cloud("us-east-1"), aws.options(instance_types=("c5.xlarge",), budget=0.08)
    site = find_site(cloud, options)
    with pytest.raises(UsageError, match=r"\$0\.08, less than one instance-hour, which is \$0\.09"):
        check_affordable(cloud, site, options)
    check_affordable(cloud, site, replace(options, budget=0.5))
