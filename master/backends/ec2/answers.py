"""Values and policies of the EC2 back end: requests and answers, translated errors, back-off of spot pools.

A spot pool is one instance type in one zone. Each pool has its own price and spare capacity. The policies are pure
functions; their times are seconds on the back end's clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gridml.errors import RunError
from gridml.protocol.foreign import printable

POOL_PAUSE_S = (30.0, 900.0)  # first and longest pause in the exponential back-off of a pool
ACCOUNT_PAUSE_S = (15.0, 300.0)  # the same for the account, after a refusal that holds for all pools
FIRST_ENROLMENT_S = 120.0  # time after the first launch within which some instance should enrol
SHUTDOWN_S = 60.0  # maximum time from a worker's goodbye to the end of its instance
NOTICE_S = 180.0  # the same after an interruption notice: two minutes of notice, and one minute to shut down


@dataclass(frozen=True, order=True)
class SpotPool:
    """Instances of one type in one zone."""

    type: str
    zone: str

    def __str__(self) -> str:
        return f"{self.type} in {self.zone}"


class Refusal(StrEnum):
    """Reasons why EC2 ("it") did not launch instances."""

    CAPACITY = "it has no spare capacity"
    PRICE = "the price is above --max-price"
    QUOTA = "the account's quota is used up"
    UNSUITED = "it has no such pool"
    DENIED = "the credentials do not allow it"
    MISSING = "the request names something that does not exist"
    OTHER = "it gives another reason"


PERMANENT = (Refusal.DENIED, Refusal.MISSING)  # these apply to every pool and do not pass, so that a retry is useless


@dataclass(frozen=True)
class Refusals:
    """The back-off state of a pool or of the account."""

    times: int = 0  # consecutive refusals
    until_s: float = 0.0  # no request before this time
    because: Refusal = Refusal.OTHER  # reason of the last refusal

    @property
    def for_good(self) -> bool:
        """Return whether the refusal is permanent, so that a retry is useless."""
        return self.times > 0 and self.because in (Refusal.UNSUITED, *PERMANENT)


def after_refusal(before: Refusals, because: Refusal, now: float, *, of_account: bool = False) -> tuple[Refusals, str]:
    """Return the back-off state after one more refusal, and a description. Pauses double up to a maximum."""
    first_s, max_s = ACCOUNT_PAUSE_S if of_account else POOL_PAUSE_S
    times = before.times + 1
    pause_s = min(max_s, first_s * 2.0 ** min(times - 1, 30))  # the exponent is bounded, because 2.0**1024 overflows
    refused = Refusals(times, now + pause_s, because)
    if refused.for_good:
        return refused, f"{because}, and is not asked again"
    return refused, f"{because}, and is asked again in {pause_s:.0f} s"


def concerns_account(refused: Collection[Refusal]) -> tuple[bool, str]:
    """Return whether the refusals concern the account, so that other pools would not help; and the reason."""
    if Refusal.QUOTA in refused:
        return True, "a quota holds for all pools"
    if refused and all(each is Refusal.OTHER for each in refused):
        return True, "no error names a pool's own problem"
    return False, "other pools may have capacity"


def pools_to_ask(
    pools: Sequence[SpotPool], refused: Mapping[SpotPool, Refusals], account: Refusals, now: float
) -> tuple[list[SpotPool], str]:
    """Return the pools that a launch may use now, and the reason. There are none while all pools back off."""
    if account.for_good:
        return [], f"no more requests are sent: {account.because}"
    if account.times and now < account.until_s:
        return [], f"no request is sent for {account.until_s - now:.0f} s: {account.because}"
    backing_off = {pool for pool, each in refused.items() if each.for_good or now < each.until_s}
    asked = [pool for pool in pools if pool not in backing_off]
    return asked, f"{len(asked)} of {len(pools)} pools may be asked"


def no_pool_left(pools: Sequence[SpotPool], refused: Mapping[SpotPool, Refusals]) -> tuple[bool, str]:
    """Return whether no pool will ever give an instance, and the reason."""
    nothing = Refusals()
    if not all(refused.get(pool, nothing).for_good for pool in pools):
        return False, "some pool may have capacity later"
    reasons = sorted({str(refused[pool].because) for pool in pools})
    return True, f"none of the {len(pools)} pools gives instances: {'; '.join(reasons)}"


def is_boot_overdue(launched_s: float, now: float, patience_s: float) -> tuple[bool, str]:
    """Return whether to replace an instance that has not enrolled, and the reason."""
    waited_s = now - launched_s
    if waited_s < patience_s:
        return False, f"it was launched {waited_s:.0f} s ago, and may take {patience_s:.0f} s to enrol"
    return True, f"it was launched {waited_s:.0f} s ago and has not enrolled within {patience_s:.0f} s"


def is_master_unreachable(running_since_s: Sequence[float], now: float, *, any_enrolled: bool) -> tuple[bool, str]:
    """Return whether instances run but seem unable to reach the master, and the reason.

    `running_since_s` are the launch times of running instances.
    """
    if any_enrolled or not running_since_s:
        return False, "an instance has enrolled, or none runs"
    waited_s = now - min(running_since_s)
    if waited_s < FIRST_ENROLMENT_S:
        return False, f"the first was launched {waited_s:.0f} s ago"
    count = len(running_since_s)
    return True, f"{count} instance{'s run' if count > 1 else ' runs'}, and after {waited_s:.0f} s none has enrolled"


def is_overdue(said_s: float, now: float, *, notified: bool) -> tuple[bool, str]:
    """Return whether to terminate an instance that has not ended after its worker's goodbye, and the reason."""
    # After an interruption notice, wait for EC2 to end the instance: one that EC2 ends in its first hour costs nothing.
    max_s, waited_s = NOTICE_S if notified else SHUTDOWN_S, now - said_s
    if waited_s < max_s:
        return False, f"its worker said goodbye {waited_s:.0f} s ago"
    return True, f"its worker said goodbye {waited_s:.0f} s ago, and it should have ended within {max_s:.0f} s"


@dataclass(frozen=True)
class MachineImage:
    """A machine image (AMI)."""

    id: str
    name: str
    architecture: str  # x86_64 or arm64


@dataclass(frozen=True)
class InstanceType:
    """An instance type."""

    name: str
    vcpus: int
    architectures: tuple[str, ...]
    spot: bool  # available as spot instances


@dataclass(frozen=True)
class Subnet:
    """A subnet of a VPC, in one zone."""

    id: str
    zone: str
    vpc: str


@dataclass(frozen=True)
class TaggedResource:
    """A resource created by a run: an instance, a launch template or a security group."""

    id: str
    run: str  # the run's name, from its tag
    place: str  # the run directory, HOST:PATH, from its tag


@dataclass(frozen=True)
class ListedInstance(TaggedResource):
    """An instance as DescribeInstances lists it. Times are seconds since 1970."""

    state: str
    reason: str  # code of EC2's StateReason
    type: str
    zone: str
    launched_s: float
    ended_s: float | None = None  # when the instance entered `state`; None if EC2 does not say


@dataclass(frozen=True)
class Template:
    """The launch template of a run."""

    name: str
    image: str
    user_data: str = field(repr=False)  # contains the fleet's token, which must not get into logs
    security_group: str
    key_name: str | None


@dataclass(frozen=True)
class FleetRequest:
    """The parameters of a CreateFleet call."""

    template: str  # name of the launch template
    count: int  # number of instances, from any of the pools
    pools: tuple[SpotPool, ...]
    subnets: Mapping[str, str]  # ids by zone
    token: str  # idempotency token: EC2 launches only once for requests with the same token
    tags: Mapping[str, str]
    max_price: float | None = None  # dollars per hour and instance
    on_demand: bool = False


@dataclass(frozen=True)
class FleetInstance:
    """An instance launched by a fleet request."""

    id: str
    pool: SpotPool


@dataclass(frozen=True)
class PoolError:
    """An error of a fleet request."""

    pool: SpotPool | None  # None if the error concerns the account
    code: str
    message: str


# Error codes after which a retry may succeed.
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
# Error codes for credentials ("they") that AWS does not accept.
_INVALID = {
    "AuthFailure": "AWS does not know them, or the account",
    "ExpiredToken": "they have expired",
    "ExpiredTokenException": "they have expired",
    "InvalidClientTokenId": "AWS does not know them",
    "RequestExpired": "they have expired, or this machine's clock is wrong",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key, or this machine's clock is wrong",
    "UnrecognizedClientException": "AWS does not know them",
}
NOT_SENT = "NotSent"  # in place of AWS's code, if the call was not sent or got no answer


class CloudError(RunError):
    """A call that AWS refused, or that got no answer.

    `code` is AWS's error code, or `NOT_SENT`; `passing` means that a retry may succeed.
    """

    def __init__(self, message: str, code: str, *, passing: bool) -> None:
        super().__init__(message)
        self.code, self.passing = code, passing


@contextlib.contextmanager
def translate_boto_errors(service: str, region: str) -> Iterator[None]:
    """Translate exceptions of boto3 into CloudError."""
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
            f"AWS is out of reach in {region}: {said}. Check the region, the network of this machine, and "
            "AWS_ENDPOINT_URL if it is set."
        )
    else:  # such as a missing profile, or a region without the service
        text = f"AWS cannot be asked: {said}. Check AWS_PROFILE, AWS_REGION and ~/.aws/config."
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
    """Return the reason that an error code of EC2 stands for; OTHER for an unknown code."""
    return _REFUSALS.get(code, Refusal.OTHER)
