"""Mistakes found before anything starts: one message on the command line, without a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gridml.cli.main import main


class Answer(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def gridml(
    aws: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """Call the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("master.views.terminal.drive", lambda *arguments, **named: pytest.fail("a run began"))

    def call(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return Answer(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def launch(gridml: Callable[..., Answer], programs: Path) -> Callable[..., Answer]:
    """Call `gridml launch` with options."""
    usual = {"--region": "us-east-1", "--address": "192.0.2.7"}

    def call(**options: str) -> Answer:
        given = {**usual, **{f"--{name.replace('_', '-')}": value for name, value in options.items()}}
        return gridml("launch", str(programs / "tally.py"), *(part for pair in given.items() for part in pair if part))

    return call


def mistake(answer: Answer) -> str:
    """Return the one message of a command that failed by a mistake of its user."""
    assert answer.status not in (0, 1), answer
    assert answer.err.startswith("Error: ") and "Traceback" not in answer.err
    assert not list(Path("runs").glob("*/ledger.db"))
    return " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("UnauthorizedOperation", "do not allow ec2:DescribeInstanceTypes in us-east-1"),
        ("AuthFailure", "AWS refuses the credentials (AuthFailure): AWS does not know them"),
        ("RequestExpired", "they have expired, or this machine's clock is wrong"),
        ("Blocked", "AWS refused ec2:DescribeInstanceTypes in us-east-1 (Blocked)"),
    ],
)
def test_what_aws_refuses(launch: Callable[..., Answer], aws: Any, code: str, said: str) -> None:
    aws.refusals["DescribeInstanceTypes"] = (code, "no")
    assert said in mistake(launch())


def test_no_credentials(launch: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    said = mistake(launch())
    assert "there are no AWS credentials that can be used" in said and "aws configure" in said


def test_no_region(gridml: Callable[..., Answer], programs: Path) -> None:
    assert "no AWS region is named" in mistake(gridml("launch", str(programs / "tally.py"), "--address", "192.0.2.7"))


def test_a_region_that_is_none(launch: Callable[..., Answer]) -> None:
    assert "--region got 'Mars'" in mistake(launch(region="Mars"))


def test_aws_out_of_reach(launch: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.client import BaseClient
    from botocore.exceptions import EndpointConnectionError

    def nowhere(self: Any, operation: str, parameters: Any) -> Any:
        raise EndpointConnectionError(endpoint_url="https://ec2.us-east-1.amazonaws.com/")

    monkeypatch.setattr(BaseClient, "_make_api_call", nowhere)
    assert "AWS is out of reach in us-east-1" in mistake(launch())


def test_no_image_in_the_region(launch: Callable[..., Answer], aws: Any) -> None:
    aws.client.deregister_image(ImageId=aws.image)
    assert "there is no image of gridml's in us-east-1. Make one: gridml ami build" in mistake(launch())


def test_an_image_that_is_not_there(launch: Callable[..., Answer]) -> None:
    assert "--image ami-0123456789abcdef0 is not in us-east-1" in mistake(launch(image="ami-0123456789abcdef0"))


def test_a_type_that_does_not_exist(launch: Callable[..., Answer]) -> None:
    said = mistake(launch(instance_types="zz9.huge,c5.xlarge"))
    assert "there is no such instance type in us-east-1: zz9.huge" in said


def test_a_region_need_not_have_all_of_the_usual_types(
    launch: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"x86_64": ("zz9.xlarge", "c5.xlarge")}
    monkeypatch.setattr("master.backends.ec2.provisioning.USUAL_TYPES", usual)
    result = launch(**{"dry_run": ""})
    assert result.status == 0 and "types           c5.xlarge\n" in result.out, result


def test_a_type_that_does_not_run_the_image(launch: Callable[..., Answer]) -> None:
    assert "c6g.xlarge is arm64" in mistake(launch(instance_types="c6g.xlarge"))


def test_a_zone_and_a_subnet_that_are_not_there(launch: Callable[..., Answer]) -> None:
    assert "--zones got us-east-1z" in mistake(launch(zones="us-east-1z"))
    assert "a subnet of --subnets is not in us-east-1" in mistake(launch(subnets="subnet-0123456789abcdef0"))


def test_a_budget_below_an_instance_hour(launch: Callable[..., Answer]) -> None:
    said = mistake(launch(budget="0.05"))
    assert "--budget is $0.05, less than one instance-hour, which is $0.07" in said


@pytest.mark.parametrize(
    ("address", "said"), [("somewhere else", "expected HOST or HOST:PORT"), ("127.0.0.1", "the machine itself")]
)
def test_an_address_where_no_instance_reaches_the_master(
    launch: Callable[..., Answer], address: str, said: str
) -> None:
    assert said in mistake(launch(address=address))


def test_lifetimes_follow_from_the_monthly_rate_of_interruption(launch: Callable[..., Answer]) -> None:
    result = launch(lifetime="interruptions(5-10%)", dry_run="")
    assert result.status == 0, result
    assert "expected 0.001 to 0.99" in mistake(launch(lifetime="interruptions(500%)"))


def test_a_certificate_that_is_none(launch: Callable[..., Answer], tmp_path: Path) -> None:
    path = tmp_path / "rsa.pem"
    assert "No such file" in mistake(launch(identity_certificate=str(path)))
    path.write_text("nothing")
    assert "it is no certificate in PEM" in mistake(launch(identity_certificate=str(path)))


def test_a_dry_run_launches_nothing(gridml: Callable[..., Answer], aws: Any, programs: Path) -> None:
    result = gridml(
        *("launch", str(programs / "tally.py"), "--region", "us-east-1", "--address", "192.0.2.7"),
        *("--instances", "3", "--dry-run"),
    )
    assert result.status == 0, result
    assert result.out.startswith("# 3 spot instances, price-capacity-optimized, in us-east-1 of account 123456789012")
    assert aws.image in result.out and "3 instances: $" in result.out
    assert not {"CreateFleet", "CreateLaunchTemplate", "CreateSecurityGroup"} & {name for name, _ in aws.calls}


def test_the_check_names_what_is_missing(gridml: Callable[..., Answer], aws: Any) -> None:
    aws.refusals["CreateFleet"] = ("UnauthorizedOperation", "You are not authorized")
    answer = gridml("ec2", "check", "--region", "us-east-1", "--address", "192.0.2.7")
    assert answer.status == 8 and "1 of these must be fixed" in answer.err
    (missing,) = [line for line in answer.out.splitlines() if line.startswith("MISSING")]
    assert missing.startswith("MISSING ec2:CreateFleet: the AWS credentials do not allow ec2:CreateFleet")
    aws.refusals.clear()
    assert gridml("ec2", "check", "--region", "us-east-1", "--address", "192.0.2.7").status == 0
