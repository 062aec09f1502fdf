"""Builds an image with plain boto3, from a staged folder.

An instance runs `install.sh` and shuts itself down, and its disk becomes the image. The staged folder holds the scripts
and units of `ami/image`, the wheel, and the user's additions. It reaches the instance through a temporary bucket, by
signed links that expire. So the instance needs no role, no key and no open port, only a route to S3. The instance and
the bucket are removed at the end, also after a failure.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib
import inspect
import io
import json
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ami import images, on_builder
from ami.images import TAG, Image, code_of, in_words
from ami.run_files import version, write_wheel
from gridml.errors import RunError, UsageError
from gridml.protocol.foreign import printable

IMAGE = Path(__file__).parent / "image"


@dataclass(frozen=True)
class Additions:
    """The user's additions to an image."""

    packages: tuple[str, ...] = ()  # requirements as pip reads them
    constraints: Path | None = None  # pip's constraints file; used by the build, not part of the image
    pip_conf: Path | None = None  # names the package index; used by the build, not part of the image


def stage(folder: Path, additions: Additions = Additions()) -> None:
    """Create the folder from which `install.sh` installs a worker into a root file system. Raises UsageError for
    invalid additions, and for a folder that is not empty."""
    for package in additions.packages:
        if not package.strip() or package.strip().startswith(("-", "#")) or "\n" in package:
            raise UsageError(f"--package got {package!r}; expected a requirement of pip, such as 'scipy>=1.11'.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty. Name an empty or a new folder.")
        for file in IMAGE.iterdir():
            shutil.copy(file, folder / file.name)
        write_wheel(folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error}. Name another folder.") from error
    with (folder / "packages.txt").open("a") as packages:
        packages.writelines(f"{package.strip()}\n" for package in additions.packages)
    for source, name in ((additions.constraints, "constraints.txt"), (additions.pip_conf, "pip.conf")):
        if source is not None:
            try:
                shutil.copy(source, folder / name)
            except OSError as error:
                raise UsageError(f"{source} cannot be read: {error}. Name a file that can.") from error


def packed(folder: Path) -> bytes:
    """Return a staged folder as a compressed tar file. Raises OSError."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return content.getvalue()


BUILDER = "gridml:builder"  # tag of the builder instance; its value is the name of the build
USUAL_TYPES = {"x86_64": "t3.medium", "arm64": "t4g.medium"}  # type of the builder instance, by architecture
POLL_S = 5.0
# Maximum durations:
LAUNCH_S = 300.0  # from the launch until the instance runs
SCRIPT_S = 1800.0  # until `install.sh`, which downloads and installs packages, reports its result
STOP_S = 600.0  # until the instance has shut down
IMAGE_S = 1800.0  # until the image is copied from the disk
LINKS_S = 3600  # until the signed links into the bucket expire
_ARCHIVE, _RESULT = "image.tar.gz", "result.json"
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class WantedImage:
    """The specification of an image."""

    architecture: str = "x86_64"
    base: str | None = None  # image id; None: the newest Debian 12
    type: str | None = None  # type of the builder instance; None: one of `USUAL_TYPES`
    subnet: str | None = None  # subnet of the builder instance; None: the account's default
    disk_gib: int = 16
    additions: Additions = field(default_factory=Additions)


@dataclass(frozen=True)
class Time:
    """A clock and a sleep, which tests replace."""

    now: Callable[[], float] = time.monotonic  # seconds since an arbitrary start
    rest: Callable[[float], None] = time.sleep  # sleeps for a number of seconds


def build(ec2: Any, s3: Any, wanted: WantedImage, say: Callable[[str], None], clock: Time = Time()) -> Image:
    """Build an image and return it. Raises UsageError for invalid additions and an unknown base image, and RunError if
    AWS refuses a call or if the instance or its script fails."""
    base = images.base(ec2, wanted.base, wanted.architecture)
    with tempfile.TemporaryDirectory(prefix="gridml-image-") as folder:
        stage(Path(folder), wanted.additions)
        archive = packed(Path(folder))
    name = f"gridml-image-{secrets.token_hex(8)}"
    with _bucket(s3, name, say):
        with in_words():
            s3.put_object(Bucket=name, Key=_ARCHIVE, Body=archive)
            links = [_link(s3, name, _ARCHIVE, "get_object"), _link(s3, name, _RESULT, "put_object")]
        with _builder(ec2, name, say):
            id = _launch(ec2, wanted, base, name, user_data(links[0], hashlib.sha256(archive).hexdigest(), links[1]))
            say(f"instance {id} makes the image on {base.id} ({base.name})")
            _await(lambda: _state(ec2, id) != "pending", clock, LAUNCH_S, f"instance {id} does not start")
            result = _await(
                lambda: _result(ec2, s3, name, id), clock, SCRIPT_S, f"instance {id} does not report a result"
            )
            if result["status"] != 0:
                raise RunError(
                    f"install.sh failed on instance {id} (status {result['status']}): {_tail(result['said'])}"
                )
            say(f"instance {id} is ready, and shuts down")
            _await(lambda: _state(ec2, id) == "stopped", clock, STOP_S, f"instance {id} does not shut down")
            made = _create(ec2, id)
            say(f"image {made} is being copied from the instance's disk")
            return _await(lambda: _available(ec2, made), clock, IMAGE_S, f"image {made} does not become available")


def user_data(archive_url: str, sha256: str, result_url: str) -> str:
    """Return the script that the builder runs at its first boot."""
    call = f"build({archive_url!r}, {sha256!r}, {result_url!r})"
    return f"#!/usr/bin/python3\n{inspect.getsource(on_builder)}\n\n{call}\n"


@contextlib.contextmanager
def _bucket(s3: Any, name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Create a bucket, and remove it and its objects on exit."""
    region = s3.meta.region_name
    place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    with in_words():
        s3.create_bucket(Bucket=name, **place)
    try:
        yield
    finally:
        with _reported(say, f"bucket {name} is left behind; remove it"):
            for key in (_ARCHIVE, _RESULT):
                s3.delete_object(Bucket=name, Key=key)
            s3.delete_bucket(Bucket=name)


@contextlib.contextmanager
def _builder(ec2: Any, name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Terminate the instances of the build `name` on exit."""
    # Instances are found by tag and not by id, because the id is unknown if the reply to the launch was lost.
    try:
        yield
    finally:
        with _reported(say, f"an instance with the tag {BUILDER}={name} may be left behind; terminate it"):
            if ids := [instance["InstanceId"] for instance in _instances(ec2, f"tag:{BUILDER}", name)]:
                ec2.terminate_instances(InstanceIds=ids)


@contextlib.contextmanager
def _reported(say: Callable[[str], None], trouble: str) -> Iterator[None]:
    """Report an error of a clean-up instead of raising it, so that it does not hide the error that ended the build."""
    try:
        with in_words():
            yield
    except RunError as error:
        say(f"{trouble}: {error}")


def _launch(ec2: Any, wanted: WantedImage, base: Image, name: str, data: str) -> str:
    tags = [{"Key": BUILDER, "Value": name}, {"Key": "Name", "Value": "gridml image builder"}]
    disk = {"VolumeSize": wanted.disk_gib, "VolumeType": "gp3", "DeleteOnTermination": True}
    network = {} if wanted.subnet is None else {"SubnetId": wanted.subnet}
    with in_words():
        launched = ec2.run_instances(
            ImageId=base.id,
            InstanceType=wanted.type or USUAL_TYPES[wanted.architecture],
            MinCount=1,
            MaxCount=1,
            ClientToken=name,
            UserData=data,
            InstanceInitiatedShutdownBehavior="stop",
            MetadataOptions={"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            BlockDeviceMappings=[{"DeviceName": base.device, "Ebs": disk}],
            TagSpecifications=[{"ResourceType": what, "Tags": tags} for what in ("instance", "volume")],
            **network,
        )
    return str(launched["Instances"][0]["InstanceId"])


def _create(ec2: Any, id: str) -> str:
    made_at = datetime.datetime.now(datetime.UTC)
    tags = [{"Key": TAG, "Value": version()}, {"Key": "Name", "Value": "gridml worker"}]
    with in_words():
        created = ec2.create_image(
            InstanceId=id,
            Name=f"gridml-worker-{made_at:%Y%m%d-%H%M%S}",
            Description=f"Workers of gridml {version()}",
            TagSpecifications=[{"ResourceType": what, "Tags": tags} for what in ("image", "snapshot")],
        )
    return str(created["ImageId"])


def _instances(ec2: Any, what: str, value: str) -> list[Any]:
    """Return the instances with this value of an EC2 filter."""
    found = ec2.describe_instances(Filters=[{"Name": what, "Values": [value]}])["Reservations"]
    return [instance for reservation in found for instance in reservation["Instances"]]


def _state(ec2: Any, id: str) -> str:
    """Return EC2's state of an instance; "pending" until EC2 lists it. Raises RunError if the instance is terminated,
    because only this build should terminate it."""
    with in_words():
        values = next(iter(_instances(ec2, "instance-id", id)), None)
    if values is None:
        return "pending"
    state = str(values["State"]["Name"])
    if state in ("shutting-down", "terminated"):
        why = values.get("StateReason", {}).get("Message") or values.get("StateTransitionReason")
        why = why or "no reason is given"
        raise RunError(f"instance {id}, which was to make the image, was terminated: {why}. Try again.")
    return state


def _result(ec2: Any, s3: Any, bucket: str, id: str) -> dict[str, Any] | None:
    """Return the script's result; None while the script runs. Raises RunError if the instance stopped without a
    result."""
    stopped = _state(ec2, id) == "stopped"
    exceptions = importlib.import_module("botocore.exceptions")
    with in_words():
        try:
            content = s3.get_object(Bucket=bucket, Key=_RESULT)["Body"].read()
        except exceptions.ClientError as error:
            if code_of(error) not in ("NoSuchKey", "404"):
                raise
            content = None
    if content is not None:
        values: dict[str, Any] = json.loads(content)
        return values
    if stopped:
        raise RunError(
            f"instance {id} shut down without a result: it did not reach S3. Name a --subnet with a route there. "
            f"The end of its console: {_console(ec2, id)}"
        )
    return None


def _console(ec2: Any, id: str) -> str:
    try:
        with in_words():
            return _tail(ec2.get_console_output(InstanceId=id).get("Output", ""))
    except RunError as error:
        return f"unavailable ({error})"


def _available(ec2: Any, id: str) -> Image | None:
    image = images.find(ec2, id)
    if image is not None and image.state in ("failed", "error", "invalid", "deregistered"):
        raise RunError(f"image {id} is {image.state}. Remove it: gridml ami remove {id}")
    return image if image is not None and image.state == "available" else None


def _await(ready: Callable[[], _Found | None], clock: Time, limit_s: float, otherwise: str) -> _Found:
    """Call `ready` every `POLL_S` seconds until it returns a true value; return that value. After `limit_s` seconds,
    raises RunError with a message that begins with `otherwise`."""
    give_up_s = clock.now() + limit_s
    while not (found := ready()):
        if clock.now() >= give_up_s:
            raise RunError(f"{otherwise} within {limit_s / 60:.0f} minutes. Try again, or another --type.")
        clock.rest(POLL_S)
    return found


def _link(s3: Any, bucket: str, key: str, call: str) -> str:
    return str(s3.generate_presigned_url(call, Params={"Bucket": bucket, "Key": key}, ExpiresIn=LINKS_S))


def _tail(text: str) -> str:
    """Return the last lines of a text as one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(" | ".join(lines[-8:]) or "nothing", 1_000)
