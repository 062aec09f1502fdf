"""Lists and removes the account's gridml images; creates boto3 clients and translates their errors."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gridml.errors import RunError, UsageError
from gridml.protocol.foreign import printable

_CREDENTIALS = {
    "AuthFailure",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "RequestExpired",
    "SignatureDoesNotMatch",
}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"}


def connect(service: str, region: str | None) -> Any:
    """Return a boto3 client of a service, by default in the configured region. Raises UsageError, RunError."""
    try:
        boto3 = importlib.import_module("boto3")
    except ImportError:
        raise UsageError("boto3, AWS's own client, is not installed. Install it: pip install boto3") from None
    config = importlib.import_module("botocore.config").Config(
        connect_timeout=10,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 5},
        # In most regions S3 refuses links signed with the older version of signatures.
        signature_version="s3v4" if service == "s3" else "v4",
    )
    with in_words():
        session = boto3.session.Session(region_name=region)
        if session.region_name is None:
            raise UsageError("no AWS region is named. Give one: --region eu-central-1, or AWS_REGION.")
        return session.client(service, config=config)


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """Translate errors of boto3 to RunError with advice."""
    exceptions = importlib.import_module("botocore.exceptions")
    try:
        yield
    except exceptions.ClientError as error:
        raise _refusal(error) from error
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        raise RunError(
            f"there are no AWS credentials: {error}. Give some: aws configure, or AWS_PROFILE, or AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY."
        ) from error
    except exceptions.BotoCoreError as error:
        raise RunError(f"AWS is out of reach: {printable(str(error), 300)}. Check --region and the network.") from error


def code_of(error: Any) -> str:
    """Return AWS's error code."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _refusal(error: Any) -> RunError:
    code, operation = code_of(error), error.operation_name
    said = printable(str(error.response.get("Error", {}).get("Message", "")), 500)
    if code in _CREDENTIALS:
        return RunError(f"AWS refuses the credentials ({code}: {said}). Give others: aws configure, or AWS_PROFILE.")
    if code in _DENIED:
        return RunError(
            f"the AWS credentials do not allow {operation}: {said}. docs/ec2.md lists what gridml ami needs, and why."
        )
    return RunError(f"AWS refused {operation} ({code}): {said}")


TAG = "gridml"  # tag of gridml's images and snapshots; its value is the version of gridml in them
DEBIAN = "136693071363"  # the account of the Debian project
ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}  # Debian's names of architectures, by EC2's names


@dataclass(frozen=True)
class Image:
    """A machine image (AMI) of EC2."""

    id: str
    name: str
    created: str  # ISO 8601, UTC
    state: str  # EC2's term
    architecture: str
    version: str  # version of gridml in the image; empty if the image is not gridml's
    device: str  # device of the root file system
    snapshots: tuple[str, ...]


def own(ec2: Any) -> list[Image]:
    """Return gridml's images of this region, newest first. Raises RunError."""
    return _newest_first(_described(ec2, Owners=["self"], Filters=[{"Name": "tag-key", "Values": [TAG]}]))


def base(ec2: Any, asked: str | None, architecture: str) -> Image:
    """Return the image to build on, by default the newest Debian 12. Raises UsageError, RunError."""
    region = ec2.meta.region_name
    if asked is not None:
        if (image := find(ec2, asked)) is None:
            raise UsageError(f"--base {asked} is unknown in {region}, or is not shared with you. Name another image.")
        return image
    wanted = {
        "name": f"debian-12-{ARCHITECTURES[architecture]}-*",
        "virtualization-type": "hvm",
        "root-device-type": "ebs",
        "state": "available",
    }
    filters = [{"Name": name, "Values": [value]} for name, value in wanted.items()]
    found = _newest_first(_described(ec2, Owners=[DEBIAN], Filters=filters))
    if not found:
        raise UsageError(f"there is no image of Debian 12 in {region}. Name the image to build on: --base ami-....")
    return found[0]


def remove(ec2: Any, ids: Sequence[str]) -> list[Image]:
    """Remove images of gridml with their snapshots, and return the images. Raises UsageError, before anything is
    removed, if an image is not gridml's, and RunError if AWS refuses a call."""
    images = {image.id: image for image in own(ec2)}
    foreign = [id for id in ids if id not in images]
    if foreign:
        raise UsageError(
            f"{', '.join(foreign)} is no image of gridml's in {ec2.meta.region_name}; expected one that gridml ami "
            "list names."
        )
    for id in dict.fromkeys(ids):
        with in_words():
            ec2.deregister_image(ImageId=id)
            for snapshot in images[id].snapshots:
                ec2.delete_snapshot(SnapshotId=snapshot)
    return [images[id] for id in dict.fromkeys(ids)]


def find(ec2: Any, id: str) -> Image | None:
    """Return an image in its current state; None if it is not listed. Raises RunError."""
    return next(iter(_described(ec2, Filters=[{"Name": "image-id", "Values": [id]}])), None)


def _described(ec2: Any, **asked: Any) -> list[Image]:
    with in_words():
        pages = ec2.get_paginator("describe_images").paginate(**asked)
        return [_image(values) for page in pages for values in page["Images"]]


def _image(values: Any) -> Image:
    tags = {tag["Key"]: tag["Value"] for tag in values.get("Tags", [])}
    disks = [mapping.get("Ebs", {}).get("SnapshotId") for mapping in values.get("BlockDeviceMappings", [])]
    return Image(
        values["ImageId"],
        values.get("Name", ""),
        values.get("CreationDate", ""),
        values.get("State", ""),
        values.get("Architecture", ""),
        tags.get(TAG, ""),
        values.get("RootDeviceName", "/dev/xvda"),
        tuple(snapshot for snapshot in disks if snapshot),
    )


def _newest_first(images: list[Image]) -> list[Image]:
    return sorted(images, key=lambda image: image.created, reverse=True)
