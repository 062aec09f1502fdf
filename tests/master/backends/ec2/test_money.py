"""Prices are saved with the roster, and a budget is enforced: first no more instances, then all leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gridml.errors import UsageError
from master.backends.ec2.budget import check_affordable
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.provisioning import find_site
from master.sftp.spending import instance_usages, saved_prices, spent
from master.state.jobs import State
from master.views.money import read_money

BEGAN_S = 1_800_000_000.0


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
    prices = saved_prices(fleet.directory.root)
    assert set(prices) == {f"{type_}/us-east-1{zone}" for type_ in ("c5.xlarge", "m5.xlarge") for zone in "abcdef"}
    fleet.polls(10, 360.0)
    assert len(fleet.aws.asked("DescribeSpotPriceHistory")) >= 5
    assert spent(instance_usages(fleet.roster), saved_prices(fleet.directory.root), fleet.now) > 0


def test_without_a_budget_any_number_is_afforded(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.polls(20, 3600.0)
    assert fleet.backend.max_workers is None


def test_a_budget_first_stops_launches_and_then_sends_all_home(thrifty: Any) -> None:
    fleet = thrifty
    fleet.submit("w1", "w2")
    fleet.enrol("w1", "w2")
    afforded = []
    while fleet.backend.max_workers != 0:
        fleet.poll(60.0)
        afforded.append(fleet.backend.max_workers)
        assert fleet.now < 1_800_000_000.0 + 8 * 3600.0
    assert afforded[0] is None and 2 in afforded  # those that are there may stay for a while
    prices = saved_prices(fleet.directory.root)
    paid = spent(instance_usages(fleet.roster), prices, fleet.now)
    assert 0.95 < paid < 1.0
    assert any("ask for no more" in said for said in fleet.news) and any("leave now" in said for said in fleet.news)
    assert fleet.backend.exhausted() is None  # they are still there
    for worker in ("w1", "w2"):
        fleet.backend.cancel(worker, grace_s=120.0)  # like the fleet with surplus workers
        fleet.goodbye(worker, 0)
    fleet.polls(4, 2.0)
    assert [fleet.end(worker).state for worker in ("w1", "w2")] == [State.EVICTED] * 2
    assert "the budget ends the run: $" in fleet.backend.exhausted()
    assert "gridml resume r --budget" in fleet.backend.more_machines("gridml resume r")
    assert spent(instance_usages(fleet.roster), prices, fleet.now) <= 1.0


def test_nothing_is_launched_when_the_budget_allows_no_more(thrifty: Any) -> None:
    fleet = thrifty
    fleet.submit("w1", "w2")
    fleet.enrol("w1", "w2")
    while fleet.backend.max_workers is None:
        fleet.poll(60.0)
    asked = len(fleet.aws.asked("CreateFleet"))
    fleet.submit("w3")
    fleet.polls(5, 2.0)
    assert len(fleet.aws.asked("CreateFleet")) == asked


def on_demand(fleet: Any, **changed: Any) -> Any:
    fleet.backend.leave()
    fleet.settings = replace(fleet.settings, options=replace(fleet.settings.options, on_demand=True, **changed))
    fleet.backend = fleet.another()
    return fleet


def test_what_on_demand_would_have_cost_is_known(fleet: Any) -> None:
    fleet.submit("w1")  # launched before the price list was read
    fleet.polls(3)
    fleet.submit("w2")
    money = read_money(fleet.directory.root, None, fleet.now)
    assert [life.on_demand for life in money.lives] == pytest.approx([0.2 / 60.0] * 2)  # a minute at least
    assert money.dollars == pytest.approx(2 * 0.07 / 60.0)


def test_instances_on_demand_are_paid_in_full(fleet: Any) -> None:
    fleet.submit("w1")  # a spot instance, whose prices are recorded
    on_demand(fleet).backend.inherit(keep=True)
    fleet.submit("w2")
    fleet.enrol("w1", "w2")
    fleet.polls(10, 360.0)
    w1, w2 = read_money(fleet.directory.root, None, fleet.now).lives
    assert w1.dollars / w1.seconds == pytest.approx(0.07 / 3600.0)
    assert w2.dollars / w2.seconds == pytest.approx(0.2 / 3600.0)


def test_a_budget_on_demand_is_held_at_the_full_price(fleet: Any) -> None:
    on_demand(fleet, budget=1.0)
    fleet.submit("w1", "w2")
    fleet.enrol("w1", "w2")
    while fleet.backend.max_workers != 0:
        fleet.poll(60.0)
        assert fleet.now < BEGAN_S + 8 * 3600.0
    paid = spent(instance_usages(fleet.roster), {}, fleet.now)
    assert 0.9 < paid < 1.0


def test_no_more_instances_are_asked_for_than_the_budget_can_keep(fleet: Any) -> None:
    fleet.backend.leave()
    fleet.settings = replace(fleet.settings, options=replace(fleet.settings.options, budget=0.25))
    fleet.backend = fleet.another()
    fleet.submit(*(f"w{n}" for n in range(1, 41)))  # for all of them the budget would not last two minutes
    fleet.polls(5)
    assert len(fleet.backend._live) == 3  # 20 minutes each, at most at the full price of $0.20
    assert fleet.backend.exhausted() is None


def test_without_prices_nothing_is_launched_within_a_budget(thrifty: Any) -> None:
    fleet = thrifty
    fleet.aws.full_price = None
    fleet.aws.refusals["DescribeSpotPriceHistory"] = ("RequestLimitExceeded", "Request limit exceeded.")
    fleet.submit("w1")
    fleet.polls(10, 5.0)
    assert not fleet.aws.asked("CreateFleet")
    (said,) = fleet.news
    assert "RequestLimitExceeded" in said and "nothing is launched within --budget" in said
    fleet.aws.refusals.clear()
    fleet.polls(10, 5.0)
    assert list(fleet.backend._live) == ["w1"]


def test_a_budget_that_cannot_be_kept_is_refused(aws: Any) -> None:
    aws.full_price = None
    cloud, options = Cloud("us-east-1"), aws.options(instance_types=("c5.xlarge",), budget=5.0, on_demand=True)
    site = find_site(cloud, options)
    with pytest.raises(UsageError, match="pricing:GetProducts"):
        check_affordable(cloud, site, options)
    aws.full_price = 6.0
    with pytest.raises(UsageError, match=r"\$5, less than one instance-hour, which is \$6"):
        check_affordable(cloud, site, options)


def test_a_budget_that_pays_for_no_hour_is_refused(aws: Any) -> None:
    aws.prices["c5.xlarge"] = 0.09
    cloud, options = Cloud("us-east-1"), aws.options(instance_types=("c5.xlarge",), budget=0.08)
    site = find_site(cloud, options)
    with pytest.raises(UsageError, match=r"\$0\.08, less than one instance-hour, which is \$0\.09"):
        check_affordable(cloud, site, options)
    check_affordable(cloud, site, replace(options, budget=0.5))
