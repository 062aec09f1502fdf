"""Workers on instances, from launch to end, with moto as EC2; the test writes the messages of instances."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from gridml.api.run_calls import apply_changes, resume_options
from gridml.carriers.enrolment import new_key
from gridml.errors import RunError, UsageError
from master.state.jobs import State

QUEUED, RUNNING, FINISHED, LOST, EVICTED = State.QUEUED, State.RUNNING, State.FINISHED, State.LOST, State.EVICTED


def test_a_worker_is_queued_at_once_runs_when_it_enrols_and_finishes_when_it_says_so(fleet: Any) -> None:
    fleet.submit("w1")
    assert fleet.states("w1") == [QUEUED]
    fleet.enrol("w1")
    assert fleet.states("w1") == [QUEUED, RUNNING]
    assert fleet.events[-1].machine == fleet.id("w1")
    fleet.goodbye("w1")
    fleet.polls(8)
    assert fleet.states("w1") == [QUEUED, RUNNING, FINISHED]
    assert (fleet.end("w1").exit_code, fleet.end("w1").graceful) == (0, False)


def test_all_that_wait_are_launched_by_one_request_from_all_pools(fleet: Any) -> None:
    fleet.submit("w1", "w2", "w3")
    (asked,) = fleet.aws.asked("CreateFleet")
    assert asked["Type"] == "instant"
    assert asked["TargetCapacitySpecification"] == {"TotalTargetCapacity": 3, "DefaultTargetCapacityType": "spot"}
    assert asked["SpotOptions"]["AllocationStrategy"] == "price-capacity-optimized"
    overrides = asked["LaunchTemplateConfigs"][0]["Overrides"]
    subnets = {each["SubnetId"] for each in fleet.aws.client.describe_subnets()["Subnets"]}
    assert {(each["InstanceType"], each["SubnetId"]) for each in overrides} == {
        (type_, subnet) for type_ in ("c5.xlarge", "m5.xlarge") for subnet in subnets
    }
    assert all("MaxPrice" not in each for each in overrides)
    assert len({fleet.id(worker) for worker in ("w1", "w2", "w3")}) == 3


def test_what_instances_are_launched_from(fleet: Any) -> None:
    fleet.submit("w1")
    (asked,) = fleet.aws.asked("CreateLaunchTemplate")
    data = asked["LaunchTemplateData"]
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert "KeyName" not in data and "InstanceMarketOptions" not in data
    text = base64.b64decode(data["UserData"]).decode()
    assert text.startswith("#cloud-config\n")
    (written,) = json.loads(text.partition("\n")[2])["write_files"]
    assert (written["path"], written["owner"], written["permissions"]) == (
        "/etc/gridml/instance.json",
        "root:gridml",
        "0640",
    )
    config = json.loads(written["content"])
    facts = fleet.roster.facts
    assert hashlib.sha256(config.pop("fleet_token").encode()).hexdigest() == facts.token_sha256
    server = json.loads((fleet.directory.root / "sftp" / "server.json").read_text())
    assert config == {
        "run": facts.run,
        "host": "192.0.2.7",
        "port": server["port"],
        "host_key": config["host_key"],
        "orphan_s": 900.0,
    }
    (group,) = fleet.aws.asked("CreateSecurityGroup")
    assert "IpPermissions" not in group and not fleet.aws.asked("AuthorizeSecurityGroupIngress")


def test_instances_get_the_servers_host_key(fleet: Any) -> None:
    from gridml.carriers.sftp import SftpConnection
    from master.sftp.server import MailServer

    server = MailServer(fleet.directory.root, "127.0.0.1")
    try:
        server.make("w1")
        from gridml.carriers.sftp import Credential

        credential = replace(Credential.read(fleet.directory.root / "sftp" / "w1"), private_key=new_key())
        assert credential.host_key == fleet.backend._endpoint.host_key
        line = SftpConnection(credential)
        with pytest.raises(PermissionError):  # the server's key is checked before the client shows its own
            line.session()
        line.close()
    finally:
        server.close()


def test_the_token_is_in_no_repr_and_in_a_file_that_only_its_owner_reads(fleet: Any) -> None:
    fleet.submit("w1")
    path = fleet.directory.root / "fleet" / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    token = path.read_text()
    texts = [repr(vars(fleet.backend._launching)), repr(fleet.settings), repr(fleet.events), repr(fleet.roster.facts)]
    assert not any(token in text for text in texts)


def test_everything_has_the_runs_tags(fleet: Any) -> None:
    fleet.submit("w1")
    run = fleet.roster.facts.run
    for operation in ("CreateFleet", "CreateLaunchTemplate", "CreateSecurityGroup"):
        (asked,) = fleet.aws.asked(operation)
        for tagged in asked["TagSpecifications"]:
            assert {"Key": "gridml:run", "Value": run} in tagged["Tags"]
    assert list(fleet.aws.states(run)) == [fleet.id("w1")]


@pytest.mark.parametrize(("status", "state"), [(1, LOST), (-11, LOST), (78, LOST)])
def test_a_worker_that_leaves_with_another_status_is_lost(fleet: Any, status: int, state: State) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.goodbye("w1", status, why="no numpy")
    fleet.polls(8)
    end = fleet.end("w1")
    assert (end.state, end.exit_code) == (state, status)
    assert "no numpy" in end.detail


def test_an_instance_with_a_notice_is_evicted_and_ended_by_ec2(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.goodbye("w1", 0, evicted=True)
    fleet.polls(8)
    end = fleet.end("w1")
    assert (end.state, end.graceful, end.exit_code, end.cancelled) == (EVICTED, None, None, False)
    assert fleet.roster.end(fleet.id("w1")).taken
    fleet.polls(20, 5.0)  # its notice: EC2 takes it, and an hour that it interrupts is free
    assert not fleet.aws.asked("TerminateInstances")
    fleet.polls(25, 5.0)
    assert fleet.aws.asked("TerminateInstances") == [{"InstanceIds": [fleet.id("w1")]}]
    assert not fleet.roster.end(fleet.id("w1")).taken  # EC2 did not take it after all, and it is paid for


def test_an_instance_that_ec2_takes_without_notice_is_an_eviction(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.aws.take(fleet.id("w1"))
    fleet.polls(8, 1.0)
    end = fleet.end("w1")
    assert (end.state, end.graceful, end.cancelled) == (EVICTED, None, False)
    assert fleet.roster.end(fleet.id("w1")).taken


def test_status_0_of_a_system_that_goes_down_because_ec2_takes_it_is_no_finish(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.goodbye("w1", 0)
    fleet.aws.take(fleet.id("w1"))
    fleet.polls(8, 1.0)
    assert fleet.end("w1").state is EVICTED


def test_a_goodbye_is_not_believed_before_ec2_was_asked_after_it(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.polls(2, 5.0)
    looks = len(fleet.aws.asked("DescribeInstances"))
    fleet.goodbye("w1", 0)
    while State.FINISHED not in fleet.states("w1"):
        fleet.poll(0.5)
    assert len(fleet.aws.asked("DescribeInstances")) > looks


def test_an_instance_that_shuts_down_without_a_word_is_lost(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.aws.take(fleet.id("w1"), "Client.InstanceInitiatedShutdown")
    fleet.polls(8, 1.0)
    assert fleet.end("w1").state is LOST
    assert not fleet.roster.end(fleet.id("w1")).taken


def test_an_instance_that_a_person_ends_is_evicted_and_not_cancelled(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.aws.client.terminate_instances(InstanceIds=[fleet.id("w1")])
    fleet.polls(8, 1.0)
    assert (fleet.end("w1").state, fleet.end("w1").cancelled) == (EVICTED, False)


def test_an_instance_that_never_enrols_is_lost_and_terminated(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.polls(59, 5.0)
    assert fleet.states("w1") == [QUEUED]
    fleet.polls(3, 5.0)
    end = fleet.end("w1")
    assert (end.state, end.exit_code) == (LOST, None)
    assert "has not enrolled" in end.detail
    assert fleet.aws.states(fleet.backend.run)[fleet.id("w1")] == "terminated"


def test_that_no_instance_reaches_the_master_is_said_once_after_two_minutes(fleet: Any) -> None:
    fleet.submit("w1", "w2")
    fleet.polls(23, 5.0)
    assert fleet.news == []
    fleet.polls(3, 5.0)
    (said,) = fleet.news
    port = fleet.backend._endpoint.port
    assert f"192.0.2.7:{port}" in said and "--address" in said and "2 instances run" in said
    fleet.polls(10, 5.0)
    assert len(fleet.news) == 1


def test_where_one_has_enrolled_the_master_is_within_reach(fleet: Any) -> None:
    fleet.submit("w1", "w2")
    fleet.enrol("w1")
    fleet.polls(40, 5.0)
    assert fleet.news == []


def test_cancel_ends_an_instance_at_once(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.backend.cancel("w1")
    fleet.polls(3)
    end = fleet.end("w1")
    assert (end.state, end.cancelled) == (EVICTED, True)
    assert fleet.aws.states(fleet.backend.run)[fleet.id("w1")] == "terminated"
    assert not fleet.roster.end(fleet.id("w1")).taken


def test_cancel_with_grace_lets_a_worker_leave(fleet: Any) -> None:
    fleet.submit("w1", "w2")
    fleet.enrol("w1", "w2")
    told_s = fleet.now
    fleet.backend.cancel("w1", grace_s=60.0)
    fleet.backend.cancel("w2", grace_s=60.0)
    fleet.polls(10, 5.0)
    assert not fleet.aws.asked("TerminateInstances")
    fleet.goodbye("w1", 0)
    fleet.polls(8, 1.0)
    fleet.polls(8, 5.0)
    ends = fleet.end("w1"), fleet.end("w2")
    assert [(end.state, end.cancelled, end.time_s - told_s < 60.0) for end in ends] == [
        (EVICTED, True, True),
        (EVICTED, True, False),
    ]


def test_cancel_of_a_waiting_and_of_an_unknown_worker(fleet: Any) -> None:
    fleet.backend.submit("w1")
    fleet.backend.cancel("w1")
    fleet.backend.cancel("unknown")
    fleet.polls(3)
    assert fleet.states("w1") == [QUEUED, EVICTED]
    assert not fleet.aws.asked("CreateFleet")


def test_a_name_can_be_used_once(fleet: Any) -> None:
    fleet.submit("w1")
    for name in ("w1", "w1.2"):
        with pytest.raises(UsageError, match=name):
            fleet.backend.submit(name)


def test_a_worker_that_left_and_whose_instance_stays_is_terminated(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.goodbye("w1")
    fleet.polls(5, 1.0)
    assert fleet.end("w1").state is FINISHED
    fleet.polls(15, 5.0)
    assert fleet.aws.states(fleet.backend.run)[fleet.id("w1")] == "terminated"
    ended_s = fleet.roster.end(fleet.id("w1")).ended_s
    assert ended_s > fleet.end("w1").time_s  # it was paid for until then


def test_unknown_instances_are_ended(fleet: Any) -> None:
    fleet.submit("w1")
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "gridml:run", "Value": fleet.backend.run}]}]
    made = fleet.aws.client.run_instances(ImageId=fleet.aws.image, MinCount=1, MaxCount=1, TagSpecifications=tags)
    stray = made["Instances"][0]["InstanceId"]
    fleet.polls(4, 5.0)
    assert fleet.aws.states(fleet.backend.run) == {fleet.id("w1"): "running", stray: "terminated"}


def test_close_leaves_nothing(fleet: Any) -> None:
    fleet.submit("w1", "w2")
    fleet.enrol("w1")
    fleet.backend.submit("w3")
    run, backend = fleet.backend.run, fleet.backend
    backend.close()
    backend.close()
    fleet.poll()
    assert [fleet.end(worker).state for worker in ("w1", "w2", "w3")] == [EVICTED] * 3
    assert set(fleet.aws.states(run).values()) == {"terminated"}
    assert fleet.aws.client.describe_launch_templates()["LaunchTemplates"] == []
    filters = [{"Name": "tag:gridml:run", "Values": [run]}]
    assert fleet.aws.client.describe_security_groups(Filters=filters)["SecurityGroups"] == []
    with pytest.raises(RunError, match="closed"):
        backend.submit("late")


def test_what_cannot_be_removed_is_said_with_what_removes_it(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.aws.refusals["DeleteSecurityGroup"] = ("DependencyViolation", "an instance uses it")
    with pytest.raises(RunError, match=r"1 security group of this run.*gridml ec2 sweep --run run-[0-9a-f]{8} --yes"):
        fleet.backend.close()


def test_a_later_master_inherits_who_lives(fleet: Any) -> None:
    fleet.submit("w1", "w2", "w3")
    fleet.enrol("w1", "w3")
    fleet.backend.leave()
    fleet.aws.take(fleet.id("w3"))
    before = fleet.roster.facts
    fleet.backend = fleet.another()
    assert fleet.roster.facts == before
    assert sorted(fleet.backend.inherit(keep=True)) == ["w1", "w2"]
    fleet.events.clear()
    fleet.polls(4)
    assert fleet.states("w1") == [RUNNING] and fleet.states("w2") == [QUEUED]
    assert fleet.roster.end(fleet.id("w3")) is not None
    fleet.enrol("w2")
    fleet.goodbye("w1")
    fleet.polls(8)
    assert fleet.states("w1") == [RUNNING, FINISHED] and fleet.states("w2") == [QUEUED, RUNNING]
    with pytest.raises(UsageError, match="w3"):
        fleet.backend.submit("w3")


def test_a_later_master_learns_the_ends_of_unwatched_instances(fleet: Any) -> None:
    fleet.submit("w1", "w2")
    fleet.enrol("w1", "w2")
    fleet.backend.leave()
    taken_s = fleet.now + 600.0
    fleet.aws.take(fleet.id("w1"), at_s=taken_s)
    fleet.aws.take(fleet.id("w2"), "Client.InstanceInitiatedShutdown", at_s=taken_s + 60.0)
    fleet.now += 36_000.0
    fleet.backend = fleet.another()
    assert fleet.backend.inherit(keep=True) == []
    ends = [fleet.roster.end(fleet.id(worker)) for worker in ("w1", "w2")]
    assert [end.ended_s for end in ends] == pytest.approx([taken_s, taken_s + 60.0], abs=1.0)
    assert [end.taken for end in ends] == [True, False]


def test_a_later_master_does_not_end_instances_with_a_notice(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.goodbye("w1", 0, evicted=True)
    fleet.polls(8)
    fleet.backend.leave()
    fleet.backend = fleet.another()
    assert fleet.backend.inherit(keep=True) == []
    fleet.polls(4, 5.0)
    assert not fleet.aws.asked("TerminateInstances")
    fleet.aws.take(fleet.id("w1"))
    fleet.polls(4, 5.0)
    assert fleet.roster.end(fleet.id("w1")).taken


def test_a_later_master_waits_for_an_instance_that_is_not_listed_yet(fleet: Any) -> None:
    fleet.aws.unlisted = True
    fleet.submit("w1")
    fleet.backend.leave()
    fleet.backend = fleet.another()
    assert fleet.backend.inherit(keep=True) == ["w1"]
    fleet.polls(4, 5.0)
    fleet.aws.unlisted = False
    fleet.enrol("w1")
    fleet.events.clear()
    fleet.polls(40, 5.0)
    assert fleet.events == []


def test_an_instance_that_one_look_leaves_out_lives(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.polls(4, 5.0)
    fleet.aws.unlisted = True
    fleet.polls(4, 5.0)
    fleet.aws.unlisted = False
    fleet.polls(4, 5.0)
    assert fleet.states("w1") == [QUEUED, RUNNING] and not fleet.aws.asked("TerminateInstances")


def test_what_is_launched_while_a_master_leaves_is_its_workers(fleet: Any) -> None:
    fleet.backend.leave()
    fleet.backend = fleet.another_that_is_slow()
    fleet.backend.submit("w1")
    fleet.poll()
    fleet.backend.leave()
    id = fleet.id("w1")
    assert fleet.aws.states(fleet.backend.run) == {id: "running"}
    fleet.backend = fleet.another()
    assert fleet.backend.inherit(keep=True) == ["w1"]


def test_close_ends_instances_that_are_not_listed_yet(fleet: Any, aws: Any) -> None:
    fleet.backend.leave()
    group = aws.client.describe_security_groups()["SecurityGroups"][0]["GroupId"]  # a run's own would show them
    fleet.settings = replace(fleet.settings, options=replace(fleet.settings.options, security_group=group))
    fleet.backend = fleet.another()
    aws.unlisted = True
    fleet.submit("w1")
    id = fleet.id("w1")

    def rest(seconds: float) -> None:
        fleet.now += seconds
        aws.unlisted = False

    fleet.backend._rest = rest
    fleet.backend.close()
    assert aws.states(fleet.backend.run) == {id: "terminated"}


def test_an_instance_with_a_notice_that_ended_with_the_run_is_paid_for(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.goodbye("w1", 0, evicted=True)
    fleet.polls(8)
    fleet.backend.close()
    assert not fleet.roster.end(fleet.id("w1")).taken


def test_a_failed_termination_is_retried_later_and_reported_once(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.enrol("w1")
    fleet.aws.refusals["TerminateInstances"] = ("RequestLimitExceeded", "Request limit exceeded.")
    fleet.backend.cancel("w1")
    fleet.polls(40)
    assert 2 <= len(fleet.aws.asked("TerminateInstances")) <= 5
    assert len(fleet.news) == 1 and "RequestLimitExceeded" in fleet.news[0]
    fleet.aws.refusals.clear()
    fleet.polls(4, 5.0)
    assert fleet.end("w1").cancelled


def test_what_a_request_launched_that_was_not_answered_is_not_ended(fleet: Any) -> None:
    fleet.submit("w1")
    fleet.polls(2, 5.0)
    fleet.aws.refusals["CreateFleet"] = ("InternalError", "an internal error")
    fleet.submit("w2")
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "gridml:run", "Value": fleet.backend.run}]}]
    fleet.aws.client.run_instances(ImageId=fleet.aws.image, MinCount=1, MaxCount=1, TagSpecifications=tags)
    fleet.polls(2, 5.0)
    assert not fleet.aws.asked("TerminateInstances")  # it may be w2's: the same request with its token tells
    fleet.aws.refusals.clear()
    fleet.polls(8, 5.0)
    assert list(fleet.backend._live) == ["w1", "w2"]


def test_a_later_master_that_keeps_none_ends_them(fleet: Any) -> None:
    fleet.submit("w1", "w2")
    fleet.enrol("w1")
    fleet.backend.leave()
    fleet.backend = fleet.another()
    assert fleet.backend.inherit(keep=False) == []
    fleet.events.clear()
    fleet.polls(4)
    assert fleet.events == []
    assert set(fleet.aws.states(fleet.backend.run).values()) == {"terminated"}


def test_a_run_is_resumed_with_an_address_that_instances_can_reach(fleet: Any) -> None:
    assert "address" in {each.name for each in resume_options()}
    fleet.submit("w1")
    fleet.backend.leave()
    with pytest.raises(UsageError, match=r"127\.0\.0\.1.*--address"):
        apply_changes(fleet.settings, {"address": "127.0.0.1:2222"})
    fleet.settings = apply_changes(fleet.settings, {"address": "192.0.2.8:2222"})
    fleet.backend = fleet.another()
    fleet.submit("w2")
    user_data_texts = [
        base64.b64decode(each["LaunchTemplateData"]["UserData"]) for each in fleet.aws.asked("CreateLaunchTemplate")
    ]
    assert [b"192.0.2.8" in text for text in user_data_texts] == [False, True]


def test_a_run_of_another_account_is_refused(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from master.backends.ec2.cloud import Cloud

    monkeypatch.setattr(Cloud, "account", lambda self: "999999999999")
    with pytest.raises(RunError, match="123456789012"):
        fleet.another()


def test_the_bundle_says_what_to_run_and_what_each_file_is(fleet: Any) -> None:
    folder = fleet.directory.root / "bundle"
    described = json.loads((folder / "bundle.json").read_text())
    assert described["program"] == "tally.py"
    assert {each["name"] for each in described["files"]} >= {"gridml.pyz", "tally.py"}
    for each in described["files"]:
        assert hashlib.sha256((folder / each["sha256"]).read_bytes()).hexdigest() == each["sha256"]
    assert described["arguments"][:2] == ["--seed", "0"]
    assert described["environment"]["OMP_NUM_THREADS"] == "4"
