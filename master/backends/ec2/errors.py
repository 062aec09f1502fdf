"""What goes wrong with AWS, in words: what was refused, why, and what a person can do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gridml.errors import RunError
from gridml.protocol.text import printable

_PASSING = {
    "InternalError",
    "InternalFailure",
    "RequestLimitExceeded",
    "RequestThrottled",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "Unavailable",
}
DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_INVALID = {
    "AuthFailure": "AWS does not know them, or the account",
    "ExpiredToken": "they have expired",
    "ExpiredTokenException": "they have expired",
    "InvalidClientTokenId": "AWS does not know them",
    "RequestExpired": "they have expired, or this machine's clock is wrong",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key, or this machine's clock is wrong",
    "UnrecognizedClientException": "AWS does not know them",
}
NOT_SENT = "NotSent"  # in place of a code, where AWS was never asked or did not answer


class CloudError(RunError):
    """AWS refused a call, or was not reached. `code` is AWS's own; `passing` says whether the same may do later."""

    def __init__(self, message: str, code: str, *, passing: bool) -> None:
        super().__init__(message)
        self.code, self.passing = code, passing


@contextlib.contextmanager
def in_words(service: str, region: str) -> Iterator[None]:
    """Whatever boto3 raises inside becomes a CloudError."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _of_answer(error, service, region) from None
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
        exceptions.SSOError,
    ) as error:
        raise CloudError(
            f"there are no AWS credentials that can be used: {_said(error)}. Give some: aws configure, AWS_PROFILE, or "
            "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY; docs/ec2.md says what they must allow.",
            NOT_SENT,
            passing=False,
        ) from None
    except (exceptions.ConnectionError, exceptions.HTTPClientError, OSError) as error:
        raise CloudError(
            f"AWS is out of reach in {region}: {_said(error)}. See that the region is right, that this machine is "
            "online, and what AWS_ENDPOINT_URL says if it is set.",
            NOT_SENT,
            passing=True,
        ) from None
    except exceptions.BotoCoreError as error:  # a profile that is not there, a region without the service
        raise CloudError(
            f"AWS cannot be asked: {_said(error)}. See to AWS_PROFILE, AWS_REGION and ~/.aws/config.",
            NOT_SENT,
            passing=False,
        ) from None


def _of_answer(error: Any, service: str, region: str) -> CloudError:
    said = error.response.get("Error", {})
    code, message = str(said.get("Code", "")), printable(str(said.get("Message", "")), 500)
    action = f"{service}:{error.operation_name}"
    if code in DENIED or code == "OptInRequired":
        return CloudError(
            f"the AWS credentials do not allow {action} in {region}. Have it allowed: "
            f"master/backends/ec2/policy.json is a policy with all that gridml launch needs. AWS says: {message}",
            code,
            passing=False,
        )
    if code in _INVALID:
        return CloudError(
            f"AWS refuses the credentials ({code}): {_INVALID[code]}. Give others: aws configure, or AWS_PROFILE.",
            code,
            passing=False,
        )
    return CloudError(f"AWS refused {action} in {region} ({code}): {message}", code, passing=code in _PASSING)


def _said(error: BaseException) -> str:
    return printable(str(error), 300).rstrip(".")
