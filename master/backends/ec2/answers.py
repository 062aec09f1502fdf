"""What EC2 is asked for and what it answers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from master.decisions.spot_fleet import Pool


@dataclass(frozen=True)
class Image:
    """A machine image, and what it runs on: x86_64 or arm64."""

    id: str
    name: str
    architecture: str
    created: str


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
class Seen:
    """An instance as EC2 describes it; `reason` is the code of why it came into this state. `launched_s` is seconds
    since 1970, and so is `ended_s`, None where EC2 does not say when it came into this state."""

    id: str
    state: str
    reason: str
    type: str
    zone: str
    launched_s: float
    run: str
    place: str
    ended_s: float | None = None


@dataclass(frozen=True)
class Kept:
    """What else a run has left behind: a launch template or a security group, and where the run lies."""

    id: str
    run: str
    place: str


@dataclass(frozen=True)
class Template:
    """What the instances of a run are launched from. `user_data` is not shown: it holds the fleet's token."""

    name: str
    image: str
    user_data: str
    security_group: str
    key_name: str | None

    def __repr__(self) -> str:
        return f"Template({self.name!r})"


@dataclass(frozen=True)
class FleetRequest:
    """`count` instances from any of the pools, each pool in its zone's subnet; `max_price` in dollars an hour. The same
    `token` with the same request launches once, however often it is sent."""

    template: str
    count: int
    pools: tuple[Pool, ...]
    subnets: Mapping[str, str]
    token: str
    tags: Mapping[str, str]
    max_price: float | None = None
    on_demand: bool = False


@dataclass(frozen=True)
class Launched:
    """An instance that a fleet request brought."""

    id: str
    pool: Pool


@dataclass(frozen=True)
class PoolError:
    """Why a pool gave nothing; without a pool, why the account got nothing."""

    pool: Pool | None
    code: str
    message: str
