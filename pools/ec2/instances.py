"""An instance of a local EC2: moto's record, which alone holds its EC2 state, and the guest that boots for it."""

from __future__ import annotations

import base64
import binascii
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pools.ec2 import machine
from pools.ec2.guest import Guest
from pools.ec2.metadata_service import InstanceFacts

ACCOUNT = "123456789012"  # moto's default
REGION = "us-east-1"
# Code and message of EC2's StateReason, by cause of an instance's end.
TAKEN = ("Server.SpotInstanceTermination", "Instance terminated due to spot interruption")
SWITCHED_OFF = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
ASKED = ("Client.UserInitiatedShutdown", "User initiated shutdown")
_DEFAULT_BEHAVIOUR = "stop"  # EC2's default for InstanceInitiatedShutdownBehavior


@dataclass(frozen=True)
class Ground:
    """Folders that all instances share."""

    layers: Sequence[Path]  # layers of the root file system, uppermost first
    memory: Path  # folder of the writable layers
    consoles: Path  # folder of the console logs


class GuestInstance:
    """A guest for moto's instance `known`, in the backend `moto`. It boots when `boot` is called.

    `happened(what, id)` is called for each event of the instance. If `mute`, the guest boots without a network.
    """

    def __init__(self, known: Any, moto: Any, ground: Ground, happened: Callable[[str, str], None], mute: bool) -> None:
        self.id: str = known.id
        self.address: str = known.private_ip
        self.interruption: tuple[str, str] | None = None
        self.rebalance: str | None = None
        self.leaving = False  # its end is scheduled
        self._known, self._moto, self._ground, self._happened, self._mute = known, moto, ground, happened, mute
        self._name = f"ip-{self.address.replace('.', '-')}"
        self._namespace = self.id[:15]  # names of network interfaces have 15 characters at most
        self._guest: Guest | None = None
        self._ending = threading.Lock()  # held by `boot` and `end`, which run on a thread pool
        self._ended = False  # final

    @property
    def wanted(self) -> bool:
        """Return whether moto lists the instance as pending or running."""
        return str(self._known.state) in ("pending", "running")

    @property
    def off(self) -> bool:
        """Return whether the instance's guest powered off by itself."""
        return not self._ended and self._guest is not None and self._guest.ended.is_set()

    def facts(self) -> InstanceFacts:
        """Return the instance's current metadata."""
        return InstanceFacts(
            id=self.id,
            type=self._known.instance_type,
            zone=self._known.availability_zone,
            region=REGION,
            image=self._known.image_id,
            account=ACCOUNT,
            address=self.address,
            launched=when(self._known.launch_time.replace(tzinfo=UTC)),
            lifecycle="spot" if self._known.lifecycle == "spot" else "on-demand",
            user_data=_decoded(self._known.user_data),
            interruption=self.interruption,
            rebalance=self.rebalance,
        )

    def boot(self) -> None:
        """Boot the guest, unless the instance has ended already. Raises NoLocalEc2."""
        with self._ending:
            if self._ended:
                return
            place = machine.plug(self._namespace, self.address, connected=not self._mute)
            memory, console = self._ground.memory / self.id, self._ground.consoles / f"{self.id}.console"
            self._guest = Guest(self._name, self._ground.layers, memory, place, console)
        self._happened("boots with its network cut" if self._mute else "boots", self.id)

    def end(self, reason: tuple[str, str], patience_s: float, word: str) -> None:
        """Power the guest off, or kill it after `patience_s` seconds; record the end and its reason. Idempotent."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
            guest, self._guest = self._guest, None
            # Until the guest has ended, API calls show the state shutting-down.
            if self.wanted and patience_s:
                self._known._state.name, self._known._state.code = "shutting-down", 32
                self._say_why(reason)
            if guest is not None:
                if patience_s:
                    guest.power_off(patience_s)
                guest.kill()
                self._tidy(lambda: machine.unplug(self._namespace))
            self._record_end(reason)
        self._happened(word, self.id)
        if guest is not None:
            self._tidy(guest.remove)

    def _tidy(self, remove: Callable[[], None]) -> None:
        """Call `remove`, and report an error as an event, because no caller waits for this thread."""
        try:
            remove()
        except Exception as error:
            self._happened(f"leaves something behind: {error}", self.id)

    def _record_end(self, reason: tuple[str, str]) -> None:
        """Update moto's record to what EC2's would be."""
        if reason == SWITCHED_OFF and self._behaviour() == "stop":
            self._known.stop()
        elif str(self._known.state) != "terminated":
            self._known.terminate()
        self._say_why(reason)
        if reason == TAKEN:
            for request in self._moto.spot_instance_requests.values():
                if getattr(request, "instance", None) is self._known:
                    request.state = "closed"

    def _say_why(self, reason: tuple[str, str]) -> None:
        code, message = reason
        self._known.state_reason.code, self._known.state_reason.message = code, f"{code}: {message}"
        initiator = "Service" if reason == TAKEN else "User"
        self._known._reason = f"{initiator} initiated ({datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC)"

    def _behaviour(self) -> str:
        """Return the instance's InstanceInitiatedShutdownBehavior."""
        # moto ignores the value in a fleet's launch template, so read that first.
        fleet = self._moto.get_fleet(self._known._spot_fleet_id or self._known._fleet_id or "")
        for configuration in fleet.launch_template_configs if fleet else ():
            with contextlib.suppress(KeyError, TypeError):
                version = self._moto._get_template_from_args(configuration["LaunchTemplateSpecification"])
                return str(version.data.get("InstanceInitiatedShutdownBehavior", _DEFAULT_BEHAVIOUR))
        return str(self._known.instance_initiated_shutdown_behavior or _DEFAULT_BEHAVIOUR)


def when(moment: datetime) -> str:
    """Format a time as EC2 does."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _decoded(user_data: Any) -> bytes | None:
    """Decode user data. moto stores them as received, sometimes in a list."""
    text = user_data[0] if isinstance(user_data, list) and user_data else user_data
    if not text:
        return None
    raw = text if isinstance(text, bytes) else str(text).encode()
    try:
        return base64.b64decode(raw, validate=True)
    except binascii.Error:
        return raw
