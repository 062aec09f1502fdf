"""What a run asks of EC2: the options of `gridml launch` that are EC2's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gridml.errors import UsageError
from master.state.jobs import BackendFacts, BackendOptions
from master.state.options import FIRST, Option

USUAL_TYPES = {
    "x86_64": (
        "c7i.xlarge",
        "c7a.xlarge",
        "c6i.xlarge",
        "c6a.xlarge",
        "c5.xlarge",
        "c5a.xlarge",
        "m7i.xlarge",
        "m7a.xlarge",
        "m6i.xlarge",
        "m6a.xlarge",
        "m5.xlarge",
        "m5a.xlarge",
    ),
    "arm64": (
        "c8g.xlarge",
        "c7g.xlarge",
        "c6g.xlarge",
        "c6gd.xlarge",
        "c6gn.xlarge",
        "m8g.xlarge",
        "m7g.xlarge",
        "m6g.xlarge",
        "m6gd.xlarge",
        "r7g.xlarge",
        "r6g.xlarge",
    ),
}
"""By architecture of the image: 4 vCPUs each, so that a run's workers are alike, and from as many pools as possible."""

PAPER_TYPE, PAPER_PRICE = "c1.xlarge", 0.10  # section 3.3: 100 of them, at a bid of $0.10 an hour
_TYPE = re.compile(r"[a-z0-9-]{2,20}\.[a-z0-9-]{2,20}")
_NAMED = {
    "region": re.compile(r"[a-z]{2,8}(-[a-z0-9]{1,10}){1,4}"),
    "zones": re.compile(r"[a-z]{2,8}(-[a-z0-9]{1,10}){1,8}"),
    "subnets": re.compile(r"subnet-[0-9a-f]{8,17}"),
    "image": re.compile(r"ami-[0-9a-f]{8,17}"),
    "security_group": re.compile(r"sg-[0-9a-f]{8,17}"),
}
_LIKE = {
    "region": "a region such as eu-central-1",
    "zones": "a zone such as eu-central-1a",
    "subnets": "a subnet such as subnet-0123456789abcdef0",
    "image": "an image such as ami-0123456789abcdef0",
    "security_group": "a security group such as sg-0123456789abcdef0",
}
MOST_DOLLARS = 10**6
MOST_S = 86_400.0


@dataclass(frozen=True)
class Ec2Options(BackendOptions):
    """`max_price` is dollars an hour that an instance costs at most, `budget` dollars that the run does.
    `boot_patience` is how many seconds an instance may take to enrol, `orphan_patience` for how many one works on
    without a word from the master. The others say in their help what they are."""

    instance_types: Annotated[
        tuple[str, ...],
        Option("Types to choose from, with commas or given again; otherwise a dozen with 4 vCPUs.", metavar="TYPE"),
    ] = ()
    region: Annotated[str | None, Option("Otherwise what AWS_REGION or the AWS configuration says.")] = None
    zones: Annotated[tuple[str, ...], Option("Zones to choose from; otherwise all of the region.", metavar="ZONE")] = ()
    subnets: Annotated[
        tuple[str, ...], Option("Subnets to launch in; otherwise the default one of each zone.", metavar="SUBNET")
    ] = ()
    image: Annotated[
        str | None, Option("Otherwise the newest that gridml ami build made in the region.", metavar="AMI")
    ] = None
    identity_certificate: Annotated[
        Path | None,
        Option(
            "A certificate (RSA) by which instances are known; otherwise gridml's own of the region.", metavar="FILE"
        ),
    ] = None
    security_group: Annotated[
        str | None, Option("Otherwise one of the run's own, which lets nothing in.", metavar="GROUP")
    ] = None
    key_name: Annotated[str | None, Option("An EC2 key pair, to log in by; otherwise none.", metavar="NAME")] = None
    max_price: Annotated[
        float | None,
        Option("Never pay more for an hour of an instance; otherwise up to the on-demand price.", metavar="DOLLARS"),
    ] = None
    budget: Annotated[
        float | None, Option("Stop, and keep the work, before more is spent.", FIRST, metavar="DOLLARS")
    ] = None
    paper: Annotated[bool, Option(f"The paper's fleet: {PAPER_TYPE} at --max-price {PAPER_PRICE:.2f}.")] = False
    on_demand: Annotated[bool, Option("Instances at the full price, which nobody takes away.")] = False
    boot_patience: Annotated[
        float, Option("An instance that has not enrolled by then is replaced.", metavar="SECONDS")
    ] = 300.0
    orphan_patience: Annotated[
        float, Option("An instance that hears nothing from the master for so long ends.", metavar="SECONDS")
    ] = 900.0

    def __post_init__(self) -> None:
        for name in ("instance_types", "zones", "subnets"):
            parts = [part.strip() for text in getattr(self, name) for part in text.split(",")]
            object.__setattr__(self, name, tuple(dict.fromkeys(filter(None, parts))))
        for type_ in self.instance_types:
            if not _TYPE.fullmatch(type_):
                raise UsageError(f"--instance-types got {type_[:60]!r}; expected types such as c7i.xlarge,c6i.xlarge.")
        for name, pattern in _NAMED.items():
            given = getattr(self, name)
            for text in given if isinstance(given, tuple) else filter(None, (given,)):
                if not pattern.fullmatch(text):
                    raise UsageError(f"--{name.replace('_', '-')} got {text[:60]!r}; expected {_LIKE[name]}.")
        for name in ("max_price", "budget"):
            dollars = getattr(self, name)
            if dollars is not None and not 0 < dollars <= MOST_DOLLARS:
                raise UsageError(
                    f"--{name.replace('_', '-')} is {dollars:g}; expected dollars above 0, at most {MOST_DOLLARS:,}."
                )
        for name in ("boot_patience", "orphan_patience"):
            seconds = getattr(self, name)
            if not 1 <= seconds <= MOST_S:
                raise UsageError(
                    f"--{name.replace('_', '-')} is {seconds:g}; expected from 1 to {MOST_S:,.0f} seconds: an instance "
                    "takes about a minute to start."
                )
        if self.paper:
            self._take_the_papers()
        if self.on_demand and self.max_price is not None:
            raise UsageError(
                "got --on-demand and --max-price; expected one of them: only spot instances have another price."
            )
        if self.identity_certificate is not None:
            object.__setattr__(self, "identity_certificate", self.identity_certificate.absolute())

    def _take_the_papers(self) -> None:
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
