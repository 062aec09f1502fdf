"""`gridml.launch`: a call launches the same instances as the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gridml
from gridml.errors import CancelledError, UsageError
from master.backends.ec2.answers import CloudError
from master.backends.ec2.cloud import Cloud
from master.sftp import server

USUAL: dict[str, Any] = {"region": "us-east-1", "address": "192.0.2.7", "display": "none"}


def test_a_run_that_is_launched_and_cancelled_leaves_nothing_in_the_account(
    aws: Any, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    listen, launch = server._listen, Cloud.launch
    monkeypatch.setattr(server, "_listen", lambda host, port, last: listen("127.0.0.1", port, last))
    root, events = tmp_path / "run", []

    def launched(cloud: Cloud, request: Any) -> Any:
        answer = launch(cloud, request)
        gridml.Run(root).cancel()  # as soon as instances exist, in any state of the loop
        return answer

    monkeypatch.setattr(Cloud, "launch", launched)
    with pytest.raises(CancelledError, match="was cancelled"):
        gridml.launch(
            programs / "tally.py",
            instances=2,
            run_dir=root,
            instance_types=["c5.xlarge", "m5.xlarge"],
            identity_certificate=aws.certificate,
            budget=3,
            on_event=events.append,
            **USUAL,
        )
    assert capfd.readouterr() == ("", "")  # display="none"
    run = gridml.Run(root)
    assert run.status == "cancelled" and run.settings()["workers"] == 2
    assert (run.settings()["ec2"]["instance_types"], run.settings()["ec2"]["budget"]) == (["c5.xlarge", "m5.xlarge"], 3)
    assert json.dumps(run.settings()).count(str(aws.certificate)) == 1
    (started,) = [event for event in events if event.topic == "started"]
    assert started.facts["workers"] == 2
    (asked,) = aws.asked("CreateFleet")
    assert asked["TargetCapacitySpecification"]["TotalTargetCapacity"] == 2
    reservations = aws.client.describe_instances()["Reservations"]
    states = [instance["State"]["Name"] for each in reservations for instance in each["Instances"]]
    assert states == ["terminated"] * 2
    assert aws.client.describe_launch_templates()["LaunchTemplates"] == []
    groups = aws.client.describe_security_groups()["SecurityGroups"]
    assert {group["GroupName"] for group in groups} == {"default"}


def test_what_aws_refuses_is_raised_before_anything_is_written(aws: Any, programs: Path, tmp_path: Path) -> None:
    aws.refusals["DescribeInstanceTypes"] = ("UnauthorizedOperation", "no")
    with pytest.raises(CloudError, match="do not allow ec2:DescribeInstanceTypes in us-east-1"):
        gridml.launch(programs / "tally.py", run_dir=tmp_path / "run", **USUAL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 3}, r"gridml\.launch got workers=…, which is no option of it; .* instances, "),
        ({"instance": 3}, "did you mean instances?"),
        ({"instances": "3"}, "got instances='3'; expected a whole number"),
        ({"instance_types": 5}, "got instance_types=5; expected a list of str"),
        ({"dry_run": True}, "got dry_run=…, which is no option of it"),
        ({"instances": 0}, "--instances is 0"),
    ],
    ids=["workers", "instance", "text", "type", "dry-run", "none"],
)
def test_options_that_make_no_sense(aws: Any, programs: Path, tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gridml.launch(programs / "tally.py", run_dir=tmp_path / "run", **USUAL, **given)
    assert not (tmp_path / "run").exists() and not aws.asked("CreateFleet")
