"""AWS as images are made with it: boto3's clients, and what they raise in words."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from gridml.errors import RunError, UsageError
from gridml.protocol.text import printable

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
    """A client of a service in a region, or in that of the configuration. Raises UsageError, RunError."""
    try:
        boto3 = importlib.import_module("boto3")
    except ImportError:
        raise UsageError(
            "boto3 is not installed, which speaks with AWS. Install it: pip install 'gridml[ec2]'."
        ) from None
    config = importlib.import_module("botocore.config").Config(
        connect_timeout=10,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 5},
        # Links that are signed the older way are refused in most regions.
        signature_version="s3v4" if service == "s3" else "v4",
    )
    with in_words():
        session = boto3.session.Session(region_name=region)
        if session.region_name is None:
            raise UsageError("no AWS region is named. Give one: --region eu-central-1, or AWS_REGION.")
        return session.client(service, config=config)


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """What boto3 raises inside becomes a RunError that says what is missing, and what to do."""
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
        raise RunError(
            f"AWS is out of reach: {printable(str(error), 300)}. Look at --region and the network."
        ) from error


def code_of(error: Any) -> str:
    """AWS's own name of what it refused a call for."""
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
