"""Options of `gridml launch` that are specific to EC2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridml.errors import UsageError
from master.state.jobs import BackendFacts, BackendOptions
from master.state.options import ABOVE_0, FIRST, check_bounds, option

USUAL_TYPES = {
    architecture: tuple(f"{family}.xlarge" for family in families.split())
    for architecture, families in {
        "x86_64": "c7i c7a c6i c6a c5 c5a m7i m7a m6i m6a m5 m5a",
        "arm64": "c8g c7g c6g c6gd c6gn m8g m7g m6g m6gd r7g r6g",
    }.items()
}
"""Default types by architecture of the image: 4 vCPUs each, so that workers are alike, and many families, so that there
are many pools."""

PAPER_TYPE, PAPER_PRICE = "c1.xlarge", 0.10  # the paper, section 3.3: 100 such instances at a bid of $0.10 an hour
_TYPE = re.compile(r"[a-z0-9-]{2,20}\.[a-z0-9-]{2,20}")
_NAMED = {
    "region": (r"[a-z]{2,8}(-[a-z0-9]{1,10}){1,4}", "a region such as eu-central-1"),
    "zones": (r"[a-z]{2,8}(-[a-z0-9]{1,10}){1,8}", "a zone such as eu-central-1a"),
    "subnets": (r"subnet-[0-9a-f]{8,17}", "a subnet such as subnet-0123456789abcdef0"),
    "image": (r"ami-[0-9a-f]{8,17}", "an image such as ami-0123456789abcdef0"),
    "security_group": (r"sg-[0-9a-f]{8,17}", "a security group such as sg-0123456789abcdef0"),
}
_DOLLARS: dict[str, Any] = {
    "bounds": (ABOVE_0, 10**6),
    "expected": "dollars above 0, at most 1,000,000",
    "metavar": "DOLLARS",
}
_SECONDS: dict[str, Any] = {
    "bounds": (1, 86_400),
    "expected": "from 1 to 86,400 seconds: an instance takes about a minute to start",
    "metavar": "SECONDS",
}


@dataclass(frozen=True)
class Ec2Options(BackendOptions):
    """The options of the EC2 back end; the help of each explains it."""

    instance_types: tuple[str, ...] = option(
        (), "Allowed types; repeatable, or comma-separated. Default: a dozen with 4 vCPUs.", metavar="TYPE"
    )
    region: str | None = option(None, "AWS region. Default: AWS_REGION or the AWS configuration.")
    zones: tuple[str, ...] = option((), "Allowed availability zones. Default: all of the region.", metavar="ZONE")
    subnets: tuple[str, ...] = option(
        (), "Subnets to launch in. Default: the default subnet of each zone.", metavar="SUBNET"
    )
    image: str | None = option(None, "Machine image. Default: the newest by gridml ami build.", metavar="AMI")
    identity_certificate: Path | None = option(
        None, "Certificate (RSA) that signs instance identities. Default: the region's, from gridml.", metavar="FILE"
    )
    security_group: str | None = option(None, "Security group. Default: a new one without access.", metavar="GROUP")
    key_name: str | None = option(None, "EC2 key pair for logging in. Default: none.", metavar="NAME")
    max_price: float | None = option(
        None, "Highest price of an instance hour. Default: the on-demand price.", **_DOLLARS
    )
    budget: float | None = option(None, "Stop the run, keeping its work, before more is spent.", FIRST, **_DOLLARS)
    paper: bool = option(False, f"The paper's fleet: {PAPER_TYPE} at --max-price {PAPER_PRICE:.2f}.")
    on_demand: bool = option(False, "Use on-demand instances, which EC2 does not interrupt, at the full price.")
    boot_patience: float = option(300.0, "Time after which an instance that has not enrolled is replaced.", **_SECONDS)
    orphan_patience: float = option(
        900.0, "Time without a message from the master after which an instance ends.", **_SECONDS
    )

    def __post_init__(self) -> None:
        # A list may be one value with commas, several values of a repeated option, or both.
        for name in ("instance_types", "zones", "subnets"):
            parts = [part.strip() for text in getattr(self, name) for part in text.split(",")]
            object.__setattr__(self, name, tuple(dict.fromkeys(filter(None, parts))))
        for type_ in self.instance_types:
            if not _TYPE.fullmatch(type_):
                raise UsageError(f"--instance-types got {type_[:60]!r}; expected types such as c7i.xlarge,c6i.xlarge.")
        for name, (pattern, like) in _NAMED.items():
            given = getattr(self, name)
            for text in given if isinstance(given, tuple) else filter(None, (given,)):
                if not re.fullmatch(pattern, text):
                    raise UsageError(f"--{name.replace('_', '-')} got {text[:60]!r}; expected {like}.")
        check_bounds(self)
        if self.paper:
            self._apply_paper_preset()
        if self.on_demand and self.max_price is not None:
            raise UsageError(
                "got --on-demand and --max-price; expected one of them: --max-price is for spot instances only."
            )
        if self.identity_certificate is not None:
            object.__setattr__(self, "identity_certificate", self.identity_certificate.absolute())

    def _apply_paper_preset(self) -> None:
        if self.instance_types not in ((), (PAPER_TYPE,)) or self.max_price not in (None, PAPER_PRICE):
            raise UsageError(
                f"got --paper with --instance-types or --max-price; expected --paper alone: it means {PAPER_TYPE} at "
                f"${PAPER_PRICE:.2f}."
            )
        object.__setattr__(self, "instance_types", (PAPER_TYPE,))
        object.__setattr__(self, "max_price", PAPER_PRICE)

    @property
    def facts(self) -> BackendFacts:
        return BackendFacts(carriers=("sftp",), workers_option="--instances")
