"""A local EC2: moto's instances, booted as guests, with a metadata service and the interruptions of a provider.

Requires machine, mount and process namespaces of its own (`machine.ALONE`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pools.ec2 import machine
from pools.ec2.api import PORT, Api, SpotPrices
from pools.ec2.instances import ACCOUNT, ASKED, REGION, SWITCHED_OFF, TAKEN, Ground, GuestInstance, when
from pools.ec2.metadata_service import ImdsServer, InstanceFacts, Signatory
from pools.ec2.root import Root

URL = f"http://{machine.GATEWAY}:{PORT}"
POLL_S = 0.1  # between two comparisons of guests with moto's instances
POWER_OFF_S = 20.0  # time for a guest to power off before it is killed
NOTICE_S = 120.0  # time between EC2's notice of a spot interruption and the interruption
MAX_CONCURRENT = 16  # instances that boot or end at the same time


@dataclass(frozen=True)
class CloudEvent:
    """An event of the cloud."""

    at_s: float  # seconds since 1970
    what: str
    id: str = ""  # id of the instance; "" if the event concerns none


class UnknownInstance(Exception):
    """No guest with this id was ever booted."""


class GuestCloud:
    """A controller that keeps one guest for each of moto's instances. Consoles and the certificate go to `folder`.

    Instances boot `root`, whatever image they are launched from. `image` is the id of a registered image that looks
    like the result of `gridml ami build`.
    """

    def __init__(self, root: Root, folder: Path) -> None:
        self.certificate = folder / "identity.pem"
        self.events: list[CloudEvent] = []
        self._ground = Ground(root.layers, Path("/run/instances"), folder / "consoles")
        self._instances: dict[str, GuestInstance] = {}  # all ever launched, by id, oldest first
        self._mute = 0  # number of instances still to be booted without a network
        self._work = ThreadPoolExecutor(MAX_CONCURRENT, "instance")

    # --- actions of the provider

    def interrupt(self, id: str, notice_s: float = NOTICE_S) -> None:
        """Send an instance an interruption notice, and end it after `notice_s` seconds. Raises UnknownInstance."""
        instance = self._instance(id)
        instance.interruption = ("terminate", when(datetime.now(UTC) + timedelta(seconds=notice_s)))
        self.happened(f"gets a notice of {notice_s:g} s", id)
        timer = threading.Timer(notice_s, lambda: self._work.submit(instance.end, TAKEN, POWER_OFF_S, "is taken"))
        timer.daemon = True  # a pending interruption must not delay the end of the process
        timer.start()

    def rebalance(self, id: str) -> None:
        """Send an instance a rebalance recommendation. Raises UnknownInstance."""
        self._instance(id).rebalance = when(datetime.now(UTC))
        self.happened("is recommended for rebalancing", id)

    def crash(self, id: str) -> None:
        """End an instance at once, without a notice. Raises UnknownInstance."""
        self.happened("crashes", id)
        self._instance(id).end(TAKEN, 0.0, "is gone")

    def refuse(self, times: int) -> None:
        """Refuse the next `times` fleets for lack of capacity."""
        self._api.refuse(times)

    def mute(self, times: int) -> None:
        """Boot the next `times` instances without a machine, so that they never enrol."""
        self._mute += times

    # --- the controller

    @contextmanager
    def up(self) -> Iterator[GuestCloud]:
        """Answer calls and boot instances inside `with`. Raises NoLocalEc2."""
        from moto.ec2.models import ec2_backends
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        self._ground.consoles.mkdir(parents=True, exist_ok=True)
        machine.lay()
        signatory = Signatory()
        self.certificate.write_text(signatory.certificate)
        # These are moto's own objects, so moto's API and this controller change the same records.
        self._moto = ec2_backends[ACCOUNT][REGION]
        self.image = _image(self._moto)
        self._api = Api(DomainDispatcherApplication(create_backend_app), SpotPrices(), self.happened)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        calls = make_server(machine.GATEWAY, PORT, self._api, threaded=True, request_handler=MotoRequestHandler)
        stop = threading.Event()
        threads = [threading.Thread(target=calls.serve_forever), threading.Thread(target=self._keep, args=(stop,))]
        try:
            with ImdsServer((machine.IMDS, 80), self._facts_at, signatory.sign).running():
                for thread in threads:
                    thread.start()
                self.happened("the cloud is up")
                try:
                    yield self
                finally:
                    stop.set()
                    calls.shutdown()
                    for thread in threads:
                        thread.join()
        finally:
            list(self._work.map(lambda each: each.end(ASKED, 0.0, "is gone with the cloud"), self._instances.values()))
            self._work.shutdown()

    def happened(self, what: str, id: str = "") -> None:
        self.events.append(CloudEvent(time.time(), what, id))

    def _instance(self, id: str) -> GuestInstance:
        if id not in self._instances:
            raise UnknownInstance(f"got the instance {id!r}, expected one of {', '.join(self._instances) or 'none'}")
        return self._instances[id]

    def _facts_at(self, address: str) -> InstanceFacts | None:
        """Return the facts of the instance at an address; None: no instance has it."""
        # moto reuses addresses: the youngest instance with this address has it now.
        instance = next((each for each in reversed(self._instances.values()) if each.address == address), None)
        return None if instance is None else instance.facts()

    def _keep(self, stop: threading.Event) -> None:
        """Reconcile guests with moto until `stop`: boot new instances, end terminated ones, and record in moto
        the instances that powered off by themselves."""
        while not stop.wait(POLL_S):
            for known in list(self._moto.all_instances()):
                if known.id not in self._instances and str(known.state) == "running":
                    self._work.submit(self._boot, self._new(known))
            for instance in list(self._instances.values()):
                if instance.off:
                    self._work.submit(instance.end, SWITCHED_OFF, 0.0, "switched itself off")
                elif not instance.wanted and not instance.leaving:
                    instance.leaving = True
                    self._work.submit(instance.end, ASKED, POWER_OFF_S, "is terminated as asked")

    def _new(self, known: Any) -> GuestInstance:
        mute = self._mute > 0
        self._mute -= mute
        instance = GuestInstance(known, self._moto, self._ground, self.happened, mute)
        self._instances[instance.id] = instance
        self.happened("is launched", instance.id)
        return instance

    def _boot(self, instance: GuestInstance) -> None:
        try:
            instance.boot()
        except Exception as error:  # recorded as an event, because no caller waits for this thread
            self.happened(f"does not boot: {error}", instance.id)


def _image(moto: Any) -> str:
    """Register an image of this account, tagged like gridml's."""
    image = moto.register_image(name="gridml-local")
    # moto drops these arguments of the call.
    image.architecture, image.virtualization_type = "x86_64", "hvm"
    image.add_tag("gridml", "image")
    return str(image.id)
