"""Requests to EC2 and its answers as plain values, AWS errors in words, and the choice of spot pools.

An error says what was refused, why, and what a person can do. One table translates EC2's error codes for a launch
that brought less than it was asked for.

A pool is an instance type in a zone: prices and spare capacity are those of a pool. Pure functions decide which
pools are asked for instances and when, and what is done about instances that say nothing. Times are seconds on one
clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gridml.errors import RunError
from gridml.protocol.foreign import printable

POOL_PAUSE_S = (30.0, 900.0)  # for which a pool without capacity is left alone: at first, at most
ACCOUNT_PAUSE_S = (15.0, 300.0)  # for which nothing is asked for, where no pool would help
FIRST_ENROLMENT_S = 120.0  # within which one of a fleet's first instances should have been heard of
SHUTDOWN_S = 60.0  # that an instance may take to end after its worker has said goodbye
NOTICE_S = 180.0  # the same, where it was told that it would be taken: two minutes' notice, and one to go


@dataclass(frozen=True, order=True)
class SpotPool:
    """Instances of one type in one zone."""

    type: str
    zone: str

    def __str__(self) -> str:
        return f"{self.type} in {self.zone}"


class Refusal(StrEnum):
    """Why a provider did not launch what it was asked for."""

    CAPACITY = "it has no spare capacity"
    PRICE = "the price is above --max-price"
    QUOTA = "the account's quota is used up"
    UNSUITED = "it has no such pool"
    DENIED = "the credentials do not allow it"
    MISSING = "it is asked for with what is not there"
    OTHER = "it gives another reason"


OF_NO_USE = (Refusal.DENIED, Refusal.MISSING)  # in no pool, and at no time


@dataclass(frozen=True)
class Refusals:
    """How often in a row a pool, or the account, has been refused, and until when it is left alone."""

    times: int = 0
    until_s: float = 0.0
    because: Refusal = Refusal.OTHER

    @property
    def for_good(self) -> bool:
        """Whether asking again would change nothing."""
        return self.times > 0 and self.because in (Refusal.UNSUITED, *OF_NO_USE)


def after_refusal(before: Refusals, because: Refusal, now: float, *, of_account: bool = False) -> tuple[Refusals, str]:
    """Return until when a pool is left alone that was refused once more, and why; each time in a row twice as long."""
    first_s, most_s = ACCOUNT_PAUSE_S if of_account else POOL_PAUSE_S
    times = before.times + 1
    pause_s = min(most_s, first_s * 2.0 ** min(times - 1, 30))
    refused = Refusals(times, now + pause_s, because)
    if refused.for_good:
        return refused, f"{because}, and is not asked again"
    return refused, f"{because}, and is asked again in {pause_s:.0f} s"


def concerns_account(refused: Collection[Refusal]) -> tuple[bool, str]:
    """Return whether a launch was refused for what no other pool would change."""
    if Refusal.QUOTA in refused:
        return True, "a quota holds for all pools"
    if refused and all(each is Refusal.OTHER for each in refused):
        return True, "nothing says that it is the pool's fault"
    return False, "other pools may have what these have not"


def pools_to_ask(
    pools: Sequence[SpotPool], refused: Mapping[SpotPool, Refusals], account: Refusals, now: float
) -> tuple[list[SpotPool], str]:
    """Return which pools a launch may use now, none while all are left alone, and why."""
    if account.for_good:
        return [], f"nothing is asked for any more: {account.because}"
    if account.times and now < account.until_s:
        return [], f"nothing is asked for until {account.until_s - now:.0f} s from now: {account.because}"
    left_alone = {pool for pool, each in refused.items() if each.for_good or now < each.until_s}
    asked = [pool for pool in pools if pool not in left_alone]
    return asked, f"{len(asked)} of {len(pools)} pools are not left alone"


def no_pool_left(pools: Sequence[SpotPool], refused: Mapping[SpotPool, Refusals]) -> tuple[bool, str]:
    """Return whether none of the pools will ever give an instance, and why."""
    nothing = Refusals()
    if not all(refused.get(pool, nothing).for_good for pool in pools):
        return False, "some pool may have capacity later"
    reasons = sorted({str(refused[pool].because) for pool in pools})
    return True, f"none of the {len(pools)} pools gives instances: {'; '.join(reasons)}"


def is_boot_overdue(launched_s: float, now: float, patience_s: float) -> tuple[bool, str]:
    """Return whether an instance that has not enrolled is given up, and another takes its place."""
    waited_s = now - launched_s
    if waited_s < patience_s:
        return False, f"it was launched {waited_s:.0f} s ago, and may take {patience_s:.0f} s to enrol"
    return True, f"it was launched {waited_s:.0f} s ago and has not enrolled; at most {patience_s:.0f} s are waited for"


def is_master_unreachable(running_since_s: Sequence[float], now: float, *, any_enrolled: bool) -> tuple[bool, str]:
    """Return whether the master seems to be where no instance can reach it: some run, and none was ever heard of.
    `running_since_s` is when those that run were launched."""
    if any_enrolled or not running_since_s:
        return False, "an instance has enrolled, or none runs"
    waited_s = now - min(running_since_s)
    if waited_s < FIRST_ENROLMENT_S:
        return False, f"the first was launched {waited_s:.0f} s ago"
    count = len(running_since_s)
    return True, f"{count} instance{'s run' if count > 1 else ' runs'}, and after {waited_s:.0f} s none has enrolled"


def is_overdue(said_s: float, now: float, *, told_interrupted: bool) -> tuple[bool, str]:
    """Return whether an instance is terminated that has not ended although its worker said goodbye. One that its
    provider said it takes is left to it: interrupted in its first hour, it costs nothing."""
    most_s, waited_s = NOTICE_S if told_interrupted else SHUTDOWN_S, now - said_s
    if waited_s < most_s:
        return False, f"its worker said goodbye {waited_s:.0f} s ago"
    return True, f"its worker said goodbye {waited_s:.0f} s ago, and it should have ended within {most_s:.0f} s"


@dataclass(frozen=True)
class MachineImage:
    """A machine image, and what it runs on: x86_64 or arm64."""

    id: str
    name: str
    architecture: str


@dataclass(frozen=True)
class InstanceType:
    """What a type has and where it can be used. `spot` says whether there are spot instances of it."""

    name: str
    vcpus: int
    architectures: tuple[str, ...]
    spot: bool


@dataclass(frozen=True)
class Subnet:
    """A part of a network, in one zone."""

    id: str
    zone: str
    vpc: str


@dataclass(frozen=True)
class TaggedResource:
    """What a run has made: an instance, a launch template or a security group, and where the run lies."""

    id: str
    run: str
    place: str


@dataclass(frozen=True)
class ListedInstance(TaggedResource):
    """An instance as EC2 describes it; `reason` is the code of why it came into this state. `launched_s` is seconds
    since 1970, and so is `ended_s`, None where EC2 does not say when it came into this state."""

    state: str
    reason: str
    type: str
    zone: str
    launched_s: float
    ended_s: float | None = None


@dataclass(frozen=True)
class Template:
    """What the instances of a run are launched from. `user_data` is not shown: it holds the fleet's token."""

    name: str
    image: str
    user_data: str = field(repr=False)
    security_group: str
    key_name: str | None


@dataclass(frozen=True)
class FleetRequest:
    """`count` instances from any of the pools, each pool in its zone's subnet; `max_price` in dollars an hour. The same
    `token` with the same request launches once, however often it is sent."""

    template: str
    count: int
    pools: tuple[SpotPool, ...]
    subnets: Mapping[str, str]
    token: str
    tags: Mapping[str, str]
    max_price: float | None = None
    on_demand: bool = False


@dataclass(frozen=True)
class FleetInstance:
    """An instance that a fleet request brought."""

    id: str
    pool: SpotPool


@dataclass(frozen=True)
class PoolError:
    """Why a pool gave nothing; without a pool, why the account got nothing."""

    pool: SpotPool | None
    code: str
    message: str


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
def translate_boto_errors(service: str, region: str) -> Iterator[None]:
    """Whatever boto3 raises inside becomes a CloudError."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _of_answer(error, service, region) from None
    except (exceptions.BotoCoreError, OSError) as error:
        raise _not_asked(error, region) from None


def _not_asked(error: Exception, region: str) -> CloudError:
    from botocore import exceptions

    said = printable(str(error), 300).rstrip(".")
    passing = isinstance(error, exceptions.ConnectionError | exceptions.HTTPClientError | OSError)
    lacking = exceptions.NoCredentialsError | exceptions.PartialCredentialsError | exceptions.CredentialRetrievalError
    if isinstance(error, lacking | exceptions.TokenRetrievalError | exceptions.SSOError):
        text = (
            f"there are no AWS credentials that can be used: {said}. Give some: aws configure, AWS_PROFILE, or "
            "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY; docs/ec2.md says what they must allow."
        )
    elif passing:
        text = (
            f"AWS is out of reach in {region}: {said}. See that the region is right, that this machine is online, and "
            "what AWS_ENDPOINT_URL says if it is set."
        )
    else:  # a profile that is not there, a region without the service
        text = f"AWS cannot be asked: {said}. See to AWS_PROFILE, AWS_REGION and ~/.aws/config."
    return CloudError(text, NOT_SENT, passing=passing)


def _of_answer(error: Any, service: str, region: str) -> CloudError:
    answer = error.response.get("Error", {})
    code, said = str(answer.get("Code", "")), printable(str(answer.get("Message", "")), 500)
    action = f"{service}:{error.operation_name}"
    if code in DENIED or code == "OptInRequired":
        text = (
            f"the AWS credentials do not allow {action} in {region}. Have it allowed: "
            f"master/backends/ec2/policy.json is a policy with all that gridml launch needs. AWS says: {said}"
        )
    elif code in _INVALID:
        text = f"AWS refuses the credentials ({code}): {_INVALID[code]}. Give others: aws configure, or AWS_PROFILE."
    else:
        text = f"AWS refused {action} in {region} ({code}): {said}"
    return CloudError(text, code, passing=code in _PASSING)


_REFUSALS: Mapping[str, Refusal] = {
    "InsufficientInstanceCapacity": Refusal.CAPACITY,
    "InsufficientHostCapacity": Refusal.CAPACITY,
    "InsufficientReservedInstanceCapacity": Refusal.CAPACITY,
    "InsufficientCapacity": Refusal.CAPACITY,
    "UnfulfillableCapacity": Refusal.CAPACITY,
    "SpotMaxPriceTooLow": Refusal.PRICE,
    "MaxSpotInstanceCountExceeded": Refusal.QUOTA,
    "MaxSpotFleetRequestCountExceeded": Refusal.QUOTA,
    "SpotInstanceCountLimitExceeded": Refusal.QUOTA,
    "VcpuLimitExceeded": Refusal.QUOTA,
    "InstanceLimitExceeded": Refusal.QUOTA,
    "FleetLimitExceeded": Refusal.QUOTA,
    "Unsupported": Refusal.UNSUITED,
    "UnsupportedOperation": Refusal.UNSUITED,
    "InvalidFleetConfiguration": Refusal.UNSUITED,
    "InvalidInstanceType": Refusal.UNSUITED,
    "InvalidParameterValue": Refusal.UNSUITED,
    "InvalidParameterCombination": Refusal.UNSUITED,
    "UnauthorizedOperation": Refusal.DENIED,
    "AccessDenied": Refusal.DENIED,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Refusal.DENIED,
    "OptInRequired": Refusal.DENIED,
    "InvalidAMIID.NotFound": Refusal.MISSING,
    "InvalidKeyPair.NotFound": Refusal.MISSING,
    "InvalidSubnetID.NotFound": Refusal.MISSING,
}


def refusal_of(code: str) -> Refusal:
    """Return what an error code of EC2 says of a pool, or of the account."""
    return _REFUSALS.get(code, Refusal.OTHER)
