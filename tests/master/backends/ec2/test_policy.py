"""The shipped policy allows every call that the back end makes, and no other."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from master.backends.ec2 import checks as ec2_checks
from master.backends.ec2.cleanup import find
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.plugin import Ec2Plugin
from master.store.rundir import RunDirectory

SERVICES = {"GetCallerIdentity": "sts", "GetServiceQuota": "servicequotas", "GetProducts": "pricing"}
IMPLIED = {
    "ec2:CreateTags": "what is made is tagged in the call that makes it",
    "iam:CreateServiceLinkedRole": "EC2 makes it with the first spot instance of an account",
}


def statements() -> list[dict[str, Any]]:
    text = resources.files("master.backends.ec2").joinpath("policy.json").read_text(encoding="utf-8")
    return list(json.loads(text)["Statement"])


def allowed() -> set[str]:
    actions = (each["Action"] for each in statements() if each["Effect"] == "Allow")
    return {name for each in actions for name in ([each] if isinstance(each, str) else each)}


def test_every_call_is_allowed_and_nothing_else(fleet: Any, aws: Any, tmp_path: Path) -> None:
    settings = fleet.settings
    plugin = Ec2Plugin()
    plugin.check(settings)
    plugin.describe(settings, RunDirectory(tmp_path / "other"), foreground=True)
    list(ec2_checks.checks("us-east-1", None, None, "192.0.2.7"))
    fleet.submit("w1", "w2")
    fleet.enrol("w1")
    fleet.backend.cancel("w1")
    fleet.polls(5, 5.0)
    find(Cloud("us-east-1"), None, 0.0, fleet.now)
    fleet.backend.close()
    made = {f"{SERVICES.get(operation, 'ec2')}:{operation}" for operation, _ in aws.calls}
    assert made | set(IMPLIED) == allowed()


def test_the_check_asks_for_every_permission_that_ec2_can_be_asked_for(fleet: Any) -> None:
    needs_a_thing = {"ec2:DeleteLaunchTemplate", "ec2:DeleteSecurityGroup", "ec2:TerminateInstances", "ec2:CreateTags"}
    asked_otherwise = {
        *("ec2:DescribeImages", "servicequotas:GetServiceQuota", "sts:GetCallerIdentity", "pricing:GetProducts"),
    }
    others = needs_a_thing | asked_otherwise | {"iam:CreateServiceLinkedRole"}
    assert set(ec2_checks.PERMISSIONS) == allowed() - others


@pytest.mark.parametrize("action", ["ec2:TerminateInstances", "ec2:DeleteSecurityGroup", "ec2:DeleteLaunchTemplate"])
def test_only_what_a_run_made_may_be_removed(action: str) -> None:
    (statement,) = [each for each in statements() if action in each["Action"]]
    assert statement["Condition"] == {"Null": {"aws:ResourceTag/gridml:run": "false"}}


def test_nothing_is_allowed_by_a_pattern() -> None:
    assert not [action for action in allowed() if "*" in action]
