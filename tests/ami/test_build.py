"""Images are built, listed and removed, with moto as EC2 and S3. The builder's user data really runs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ami import build, images
from ami import build as building
from ami.build import BUILDER, POLL_S, SCRIPT_S, Additions, Time, WantedImage, user_data
from ami.images import connect
from gridml.cli.main import main
from gridml.errors import RunError, UsageError
from master.simulation.faulty_network import VirtualClock
from tests.support.aws_models import keep_models

pytestmark = pytest.mark.real
REGION = "eu-central-1"
SCRIPT = "echo making; test -f gridml-*.whl || cd $(dirname $0); ls; grep scipy packages.txt"


class Aws:
    """An account on moto with only a Debian image, and the instance that builds."""

    def __init__(self, folder: Path) -> None:
        self.ec2, self.s3 = connect("ec2", REGION), connect("s3", REGION)
        self.clock = VirtualClock()
        self.folder = folder
        self.base = self.ec2.register_image(
            Name="debian-12-amd64-20260401", RootDeviceName="/dev/xvda", Architecture="x86_64", VirtualizationType="hvm"
        )["ImageId"]
        self.said: list[str] = []
        self.on_boot: Callable[[str], None] = self.boot
        self.booted: list[str] = []
        self.haste = 1.0  # factor by which time passes faster
        self.tagged: list[str] = []  # resources that CreateImage was asked to tag
        self.ec2.meta.events.register("provide-client-params.ec2.CreateImage", self.without_snapshot_tags)

    def build(self, wanted: WantedImage | None = None) -> images.Image:
        wanted = wanted or WantedImage(base=self.base, additions=Additions(("scipy>=1.11",)))
        return building.build(self.ec2, self.s3, wanted, self.said.append, Time(self.clock, self.rest))

    def without_snapshot_tags(self, params: dict[str, Any], **_: Any) -> None:
        """moto tags no snapshots with CreateImage: it answers 500."""
        wanted = params["TagSpecifications"]
        self.tagged = [each["ResourceType"] for each in wanted if {"gridml"} <= {tag["Key"] for tag in each["Tags"]}]
        params["TagSpecifications"] = [each for each in wanted if each["ResourceType"] != "snapshot"]

    def rest(self, seconds: float) -> None:
        """Let time pass; a running instance boots once."""
        self.clock.sleep(seconds * self.haste)
        for id in self.builders("running"):
            if id not in self.booted:
                self.booted.append(id)
                self.on_boot(id)

    def builders(self, *states: str) -> list[str]:
        asked = [{"Name": "tag-key", "Values": [BUILDER]}]
        found = self.ec2.describe_instances(Filters=asked)["Reservations"]
        instances = [each for reservation in found for each in reservation["Instances"]]
        return [each["InstanceId"] for each in instances if not states or each["State"]["Name"] in states]

    def boot(self, id: str) -> None:
        """Run the user data as cloud-init would; only the power switch is a stand-in."""
        data = self.ec2.describe_instance_attribute(InstanceId=id, Attribute="userData")["UserData"]["Value"]
        script = self.folder / "user-data"
        script.write_bytes(base64.b64decode(data))
        switch = self.folder / "bin" / "systemd-run"
        switch.parent.mkdir(exist_ok=True)
        switch.write_text(f'#!/bin/sh\necho "$@" > {self.folder}/switched\n')
        switch.chmod(0o755)
        path = f"{switch.parent}:{os.environ['PATH']}"
        done = subprocess.run([sys.executable, script], env={"PATH": path}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        self.ec2.stop_instances(InstanceIds=[id])

    @property
    def switched(self) -> str:
        return (self.folder / "switched").read_text()

    def is_empty(self) -> bool:
        """Return whether a build has left nothing but images."""
        return self.builders("pending", "running", "stopping", "stopped") == [] and self.buckets == []

    @property
    def buckets(self) -> list[str]:
        return [bucket["Name"] for bucket in self.s3.list_buckets()["Buckets"]]


@pytest.fixture
def image_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for ami/image, whose script must not run here."""
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "install.sh").write_text(SCRIPT)
    (folder / "packages.txt").write_text("numpy\n")
    monkeypatch.setattr(build, "IMAGE", folder)
    return folder


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # hundreds, each with a disk, after every reset
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_folder: Path, endpoint: str) -> Iterator[Aws]:
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    keep_models(monkeypatch)
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST"), timeout=60).close()
    made = Aws(tmp_path)
    yield made
    made.ec2.close()
    made.s3.close()


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["ami", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_an_image_is_made_and_nothing_else_is_left(aws: Aws) -> None:
    image = aws.build()
    assert image.state == "available" and image.version
    assert image in images.own(aws.ec2)
    assert "clean.sh" in aws.switched and "systemctl poweroff" in aws.switched
    assert aws.is_empty()
    assert aws.tagged == ["image", "snapshot"]
    assert aws.ec2.describe_snapshots(SnapshotIds=[*image.snapshots])["Snapshots"]


def test_the_builder_asks_for_little(aws: Aws) -> None:
    launched: dict[str, Any] = {}
    aws.ec2.meta.events.register("provide-client-params.ec2.RunInstances", lambda params, **_: launched.update(params))
    aws.build()
    assert launched["InstanceInitiatedShutdownBehavior"] == "stop"
    assert launched["MetadataOptions"]["HttpTokens"] == "required"
    assert not {"KeyName", "SecurityGroupIds", "IamInstanceProfile"} & launched.keys()
    device = images.base(aws.ec2, aws.base, "x86_64").device
    assert launched["BlockDeviceMappings"][0]["DeviceName"] == device


def test_what_is_fetched_is_checked(aws: Aws) -> None:
    def boot(id: str) -> None:
        [bucket] = aws.buckets
        aws.s3.put_object(Bucket=bucket, Key="image.tar.gz", Body=b"something else")
        aws.boot(id)

    aws.on_boot = boot
    with pytest.raises(RunError, match="the archive has the SHA-256"):
        aws.build()
    assert aws.is_empty()


def test_a_script_that_fails_says_why(aws: Aws, image_folder: Path) -> None:
    (image_folder / "install.sh").write_text("echo no such package: torch >&2; exit 3")
    with pytest.raises(RunError, match=r"status 3\): no such package: torch"):
        aws.build()
    assert "clean.sh" not in aws.switched and "systemctl poweroff" in aws.switched
    assert aws.is_empty() and images.own(aws.ec2) == []


def test_a_builder_that_cannot_reach_s3(aws: Aws) -> None:
    aws.on_boot = lambda id: aws.ec2.stop_instances(InstanceIds=[id]) and None
    with pytest.raises(RunError, match=r"did not reach S3\. Name a --subnet"):
        aws.build()
    assert aws.is_empty()


def test_a_builder_that_is_terminated_by_others(aws: Aws) -> None:
    aws.on_boot = lambda id: aws.ec2.terminate_instances(InstanceIds=[id]) and None
    with pytest.raises(RunError, match="was terminated"):
        aws.build()
    assert aws.is_empty()


def test_a_builder_that_says_nothing_is_given_up(aws: Aws) -> None:
    aws.on_boot, aws.haste = lambda id: None, 20.0
    with pytest.raises(RunError, match="does not report a result within 30 minutes"):
        aws.build()
    assert SCRIPT_S <= aws.clock() <= SCRIPT_S + 60 * POLL_S
    assert aws.is_empty()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_happens_the_builder_goes(aws: Aws, error: type[BaseException]) -> None:
    def boot(id: str) -> None:
        raise error

    aws.on_boot = boot
    with pytest.raises(error):
        aws.build()
    assert aws.booted and aws.is_empty()


def test_an_answer_that_is_lost_leaves_no_builder(aws: Aws) -> None:
    def lose(**_: Any) -> None:
        raise ConnectionResetError("the answer is lost")

    aws.ec2.meta.events.register("after-call.ec2.RunInstances", lose)
    with pytest.raises(ConnectionResetError):
        aws.build()
    assert aws.builders("terminated") and aws.is_empty()


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("RunInstances", "UnauthorizedOperation", "do not allow RunInstances"),
        ("RunInstances", "VcpuLimitExceeded", r"AWS refused RunInstances \(VcpuLimitExceeded\)"),
        ("CreateImage", "UnauthorizedOperation", "do not allow CreateImage"),
        ("DescribeImages", "AuthFailure", "refuses the credentials"),
    ],
)
def test_what_is_not_allowed_is_named(aws: Aws, call: str, code: str, words: str) -> None:
    from botocore.exceptions import ClientError

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "said AWS"}}, call)

    aws.ec2.meta.events.register(f"before-call.ec2.{call}", refuse)
    with pytest.raises(RunError, match=words):
        aws.build()
    aws.ec2.meta.events.unregister(f"before-call.ec2.{call}", refuse)
    assert aws.is_empty() and images.own(aws.ec2) == []


def test_a_builder_that_cannot_be_terminated_is_named(aws: Aws) -> None:
    from botocore.exceptions import ClientError

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}, "TerminateInstances")

    aws.ec2.meta.events.register("before-call.ec2.TerminateInstances", refuse)
    assert aws.build().state == "available"
    assert "may be left behind; terminate it" in aws.said[-1] and aws.buckets == []


def test_links_and_script_fit_into_user_data() -> None:
    link = "https://bucket.s3.amazonaws.com/key?X-Amz-Security-Token=" + "x" * 3000
    text = user_data(link, "0" * 64, link)
    assert len(text.encode()) < 16_384
    compile(text, "user-data", "exec")


# --- the base image


def test_no_debian_in_the_region(aws: Aws) -> None:
    with pytest.raises(UsageError, match=r"no image of Debian 12 in eu-central-1. Name .* --base"):
        aws.build(WantedImage())


def test_the_newest_debian_is_taken(aws: Aws) -> None:
    from moto.ec2.models import ec2_backends

    named = {}
    for name in (
        "debian-12-amd64-20260101",
        "debian-12-amd64-20260301",
        "debian-12-arm64-20260401",
        "debian-13-amd64-20260501",
    ):
        made = aws.ec2.register_image(Name=name, RootDeviceName="/dev/xvda", VirtualizationType="hvm")
        ami = ec2_backends["123456789012"][REGION].amis[made["ImageId"]]
        ami.owner_id, ami.virtualization_type, ami.root_device_type = images.DEBIAN, "hvm", "ebs"
        ami.creation_date = datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC)
        named[name] = made["ImageId"]
    assert images.base(aws.ec2, None, "x86_64").id == named["debian-12-amd64-20260301"]
    assert images.base(aws.ec2, None, "arm64").id == named["debian-12-arm64-20260401"]


def test_a_base_that_is_not_there(aws: Aws) -> None:
    with pytest.raises(UsageError, match="--base ami-0123 is unknown"):
        images.base(aws.ec2, "ami-0123", "x86_64")


# --- the commands


def test_images_are_listed_and_removed(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    image = aws.build()
    status, out, _ = command(capsys, "list", "--region", REGION, "--json")
    assert status == 0 and [each["id"] for each in json.loads(out)] == [image.id]
    status, out, _ = command(capsys, "list", "--region", REGION)
    assert image.id in out and image.name in out
    status, _, err = command(capsys, "remove", image.id, aws.base, "--region", REGION)
    assert status == 2 and f"{aws.base} is no image of gridml's" in err
    assert images.own(aws.ec2) == [image]
    status, out, _ = command(capsys, "remove", image.id, "--region", REGION)
    assert status == 0 and image.id in out
    assert images.own(aws.ec2) == []
    left = {each["SnapshotId"] for each in aws.ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]}
    assert not left & set(image.snapshots)
    status, out, _ = command(capsys, "list", "--region", REGION)
    assert "No image was built by gridml in eu-central-1" in out


def test_the_command_builds(aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = building.build
    monkeypatch.setattr(
        building, "build", lambda ec2, s3, wanted, say: real(aws.ec2, aws.s3, wanted, say, Time(aws.clock, aws.rest))
    )
    status, out, err = command(capsys, "build", "--region", REGION, "--base", aws.base, "--package", "scipy", "--json")
    assert status == 0, err
    assert json.loads(out)["state"] == "available" and "makes the image" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--architecture", "sparc"], "expected x86_64 or arm64"),
        (["--package", "--index-url=x"], "expected a requirement of pip"),
        (["--constraints", "/no/such/file"], "/no/such/file cannot be read"),
    ],
)
def test_what_cannot_be_built(aws: Aws, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    status, _, err = command(capsys, "build", "--region", REGION, "--base", aws.base, *arguments)
    assert status == 2 and words in err
    assert aws.is_empty()


def test_no_region(aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    status, _, err = command(capsys, "list")
    assert status == 2 and "no AWS region is named" in err


def test_no_credentials(aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    status, _, err = command(capsys, "list", "--region", REGION)
    assert status == 8 and "there are no AWS credentials" in err


def test_no_service_answers(aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    status, _, err = command(capsys, "list", "--region", REGION)
    assert status == 8 and "AWS is out of reach" in err
