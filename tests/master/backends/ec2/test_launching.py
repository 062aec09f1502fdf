"""Launches that bring fewer instances than requested, with errors that moto does not produce by itself."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from master.state.jobs import State

ZONES = [f"us-east-1{letter}" for letter in "abcdef"]


def types_asked(asked: dict[str, Any]) -> set[str]:
    return {override["InstanceType"] for override in asked["LaunchTemplateConfigs"][0]["Overrides"]}


def no_capacity(fleet: Any, *types: str, code: str = "InsufficientInstanceCapacity") -> None:
    fleet.aws.pool_errors = {(type_, zone): code for type_, zone in itertools.product(types, ZONES)}


def test_pools_without_capacity_are_left_alone_and_others_tried(fleet: Any) -> None:
    no_capacity(fleet, "c5.xlarge", "m5.xlarge")
    fleet.submit("w1")
    assert fleet.states("w1") == [State.QUEUED] and not fleet.backend._live
    (said,) = fleet.news
    assert "has no spare capacity" in said and "InsufficientInstanceCapacity" in said and "in 30 s" in said
    fleet.polls(4, 5.0)
    assert len(fleet.aws.asked("CreateFleet")) == 1
    no_capacity(fleet, "c5.xlarge")
    fleet.polls(3, 5.0)
    first, second = fleet.aws.asked("CreateFleet")
    assert first["ClientToken"] != second["ClientToken"]
    assert list(fleet.backend._live) == ["w1"]
    fleet.submit("w2")
    assert types_asked(fleet.aws.asked("CreateFleet")[-1]) == {"m5.xlarge"}
    assert len(fleet.news) == 1


def test_pauses_grow(fleet: Any) -> None:
    no_capacity(fleet, "c5.xlarge", "m5.xlarge")
    fleet.submit("w1")
    asked_s = []
    for _ in range(400):
        before = len(fleet.aws.asked("CreateFleet"))
        fleet.poll(5.0)
        if len(fleet.aws.asked("CreateFleet")) > before:
            asked_s.append(fleet.now)
    pauses = [after - before for before, after in itertools.pairwise(asked_s)]
    assert pauses == pytest.approx([60.0, 120.0, 240.0, 480.0, 900.0][: len(pauses)], abs=5.0) and len(pauses) >= 4


def test_what_is_had_is_kept_and_the_rest_asked_for_again(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = fleet.backend._cloud.launch
    monkeypatch.setattr(fleet.backend._cloud, "launch", lambda request: (launch(request)[0][:1], []))
    fleet.submit("w1", "w2")
    fleet.polls(5, 5.0)
    assert list(fleet.backend._live) == ["w1", "w2"]
    targets = [asked["TargetCapacitySpecification"] for asked in fleet.aws.asked("CreateFleet")]
    assert [target["TotalTargetCapacity"] for target in targets] == [2, 1]


def test_a_quota_that_is_used_up_is_said_and_asked_again(fleet: Any) -> None:
    no_capacity(fleet, "c5.xlarge", "m5.xlarge", code="MaxSpotInstanceCountExceeded")
    fleet.submit("w1")
    fleet.polls(3, 5.0)
    said = " ".join(fleet.news)
    assert "quota" in said and "Service Quotas" in said and "--instances" in said
    fleet.aws.pool_errors = {}
    fleet.polls(10, 5.0)
    assert list(fleet.backend._live) == ["w1"]


def test_a_quota_of_the_whole_request(fleet: Any) -> None:
    fleet.aws.refusals["CreateFleet"] = ("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    fleet.submit("w1")
    assert "Service Quotas" in fleet.news[0]


def test_pools_that_the_region_does_not_have_end_the_wait(fleet: Any) -> None:
    no_capacity(fleet, "c5.xlarge", "m5.xlarge", code="Unsupported")
    fleet.submit("w1")
    assert "none of the 12 pools gives instances" in fleet.backend.exhausted()
    assert "--instance-types" in fleet.backend.more_machines("gridml resume r")


def test_why_a_request_is_refused_as_a_whole_is_said(fleet: Any) -> None:
    fleet.aws.refusals["CreateFleet"] = ("InvalidParameterValue", "User data is limited to 16384 bytes")
    fleet.submit("w1")
    assert "User data is limited to 16384 bytes" in fleet.news[0]
    assert "User data is limited to 16384 bytes" in fleet.backend.exhausted()


def test_a_launch_that_is_not_allowed_ends_the_run(fleet: Any) -> None:
    fleet.aws.refusals["CreateFleet"] = ("UnauthorizedOperation", "You are not authorized")
    fleet.submit("w1")
    assert "do not allow ec2:CreateFleet" in fleet.backend.exhausted()
    assert fleet.backend.more_machines("gridml resume r") == "Fix that, then go on: gridml resume r"


def test_a_launch_that_is_no_longer_allowed_ends_the_run_with_its_last_instance(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.aws.refusals["CreateFleet"] = ("UnauthorizedOperation", "You are not authorized")
    fleet.submit("w2")
    assert fleet.backend.exhausted() is None  # w1 works
    fleet.goodbye("w1", 0)
    fleet.polls(8)
    assert "do not allow ec2:CreateFleet" in fleet.backend.exhausted()


def test_a_key_pair_that_is_not_there_ends_the_run(fleet: Any) -> None:
    no_capacity(fleet, "c5.xlarge", "m5.xlarge", code="InvalidKeyPair.NotFound")
    fleet.submit("w1")
    assert "InvalidKeyPair.NotFound" in fleet.backend.exhausted()


def test_a_group_that_is_there_and_not_yet_listed_is_asked_for_again(fleet: Any) -> None:
    fleet.aws.refusals["CreateSecurityGroup"] = ("InvalidGroup.Duplicate", "the group already exists")
    fleet.submit("w1")
    assert "does not list it yet" in fleet.news[0]
    fleet.aws.refusals.clear()
    fleet.polls(5, 5.0)
    assert list(fleet.backend._live) == ["w1"]


@pytest.mark.parametrize(("dollars", "text"), [(0.1, "0.1"), (1.0, "1"), (10.0, "10"), (0.0324, "0.0324")])
def test_a_price_is_written_as_a_number(fleet: Any, dollars: float, text: str) -> None:
    fleet.backend.leave()
    fleet.settings = replace(fleet.settings, options=replace(fleet.settings.options, max_price=dollars))
    fleet.backend = fleet.another()
    fleet.submit("w1")
    overrides = fleet.aws.asked("CreateFleet")[0]["LaunchTemplateConfigs"][0]["Overrides"]
    assert {each["MaxPrice"] for each in overrides} == {text}


def test_a_request_whose_answer_was_lost_is_sent_again_with_its_token(fleet: Any) -> None:
    fleet.aws.refusals["CreateFleet"] = ("InternalError", "an internal error")
    fleet.submit("w1")
    fleet.aws.refusals.clear()
    fleet.polls(5, 5.0)
    tokens = [asked["ClientToken"] for asked in fleet.aws.asked("CreateFleet")]
    assert len(tokens) == 2 and len(set(tokens)) == 1
    assert list(fleet.backend._live) == ["w1"]


def test_the_price_is_capped_where_that_is_asked_for(aws: Any, tmp_path: Any, fleet: Any) -> None:
    fleet.backend.leave()
    fleet.settings = replace(fleet.settings, options=aws.options(paper=True))
    fleet.backend = fleet.another()
    fleet.submit("w1")
    overrides = aws.asked("CreateFleet")[0]["LaunchTemplateConfigs"][0]["Overrides"]
    assert {(each["InstanceType"], each["MaxPrice"]) for each in overrides} == {("c1.xlarge", "0.1")}
