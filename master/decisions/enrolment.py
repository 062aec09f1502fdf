"""Whether a machine that shows its identity is one that the fleet launched, and may have its worker's place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

RETRY_S = 3.0  # after which a machine asks again that may only not be known yet
LAUNCH_S = 900.0  # by which a document's time may differ from the launch: clocks differ, and starting takes time


class Verdict(Enum):
    """What becomes of a machine that asks."""

    ENROL = auto()
    WAIT = auto()  # it may ask again
    REFUSE = auto()


@dataclass(frozen=True)
class Identity:
    """What an identity document says: of which account, region and image a machine is, and which one; `launched_s`
    seconds since 1970."""

    account: str
    region: str
    image: str
    instance: str
    launched_s: float


@dataclass(frozen=True)
class Launched:
    """What is known of an instance: when it was launched (seconds since 1970), which key enrolled for it, whether it
    has ended, and whether it has said that it is being taken away."""

    launched_s: float
    public_key: str | None = None
    ended: bool = False
    evicted: bool = False


@dataclass(frozen=True)
class Request:
    """A machine that proved to hold `public_key` asks to enrol; `identity` is None where its document says none.
    `launched` is what is known of the instance that it names, None for nothing."""

    public_key: str
    token_fits: bool
    signature_fits: bool
    identity: Identity | None
    launched: Launched | None


def on_request(request: Request, account: str, region: str, image: str) -> tuple[Verdict, str]:
    """Return what becomes of a request to a fleet of this account, region and image, and why.

    Who has not the fleet's token is told nothing else, and of an instance nothing is said before its document is known
    to be genuine. One instance has one key for ever: the same key may ask again, as after its daemon started anew.
    """
    if not request.token_fits:
        return Verdict.REFUSE, "the fleet's token is another"
    if not request.signature_fits:
        return Verdict.REFUSE, "the identity document's signature is not its provider's"
    identity, launched = request.identity, request.launched
    if identity is None:
        return Verdict.REFUSE, "the identity document does not say who this is"
    for what, got, wanted in (
        ("account", identity.account, account),
        ("region", identity.region, region),
        ("image", identity.image, image),
    ):
        if got != wanted:
            return Verdict.REFUSE, f"the identity document is of {what} {got!r}, the fleet of {wanted!r}"
    if launched is None:
        return Verdict.WAIT, f"instance {identity.instance} is not known to be of this fleet, or not yet"
    if launched.ended:
        return Verdict.REFUSE, f"instance {identity.instance} has ended"
    if launched.evicted:
        return Verdict.REFUSE, f"instance {identity.instance} has said that it is being taken away"
    apart_s = identity.launched_s - launched.launched_s
    if not abs(apart_s) <= LAUNCH_S:  # so that NaN is refused
        older = "older" if apart_s < 0 else "newer"
        return Verdict.REFUSE, f"the identity document is {abs(apart_s):.0f} s {older} than the launch of its instance"
    if launched.public_key is None:
        return Verdict.ENROL, f"instance {identity.instance} is of this fleet"
    if launched.public_key != request.public_key:
        return Verdict.REFUSE, f"instance {identity.instance} has enrolled with another key"
    return Verdict.ENROL, f"instance {identity.instance} enrolled with this key before"
