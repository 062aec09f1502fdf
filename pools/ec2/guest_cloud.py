"""A local EC2: moto's instances, really booted, with a metadata service, and what a provider does to them.

It takes network, mount and process namespaces of its own (`machine.ALONE`).
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

from pools.ec2 import network
from pools.ec2.api import PORT, Api, SpotPrices
from pools.ec2.instances import ACCOUNT, ASKED, REGION, SWITCHED_OFF, TAKEN, Ground, GuestInstance, when
from pools.ec2.metadata_service import ImdsServer, InstanceFacts, Signatory
from pools.ec2.root import Root

URL = f"http://{network.GATEWAY}:{PORT}"
LOOK_S = 0.1  # between two looks at what moto has
POWER_OFF_S = 20.0  # that a guest has for going off when it is told to
NOTICE_S = 120.0
AT_ONCE = 16  # instances that are booted or ended at the same time


@dataclass(frozen=True)
class CloudEvent:
    """What happened to which instance ("" for none), and when: seconds since 1970."""

    at_s: float
    what: str
    id: str = ""


class UnknownInstance(Exception):
    """No guest was ever booted for this id."""


class GuestCloud:
    """Keeps guests as moto has instances. `folder` gets the consoles and the certificate.

    Whatever image an instance is launched from, it boots `root`; `image` is one as `gridml ami build` leaves it.
    """

    def __init__(self, root: Root, folder: Path) -> None:
        self.certificate = folder / "identity.pem"
        self.events: list[CloudEvent] = []
        self._ground = Ground(root.layers, Path("/run/instances"), folder / "consoles")
        self._instances: dict[str, GuestInstance] = {}
        self._mute = 0
        self._work = ThreadPoolExecutor(AT_ONCE, "instance")

    # What a provider does.

    def interrupt(self, id: str, notice_s: float = NOTICE_S) -> None:
        """Tell an instance that it will be taken, and take it after `notice_s` seconds. Raises UnknownInstance."""
        instance = self._instance(id)
        instance.interruption = ("terminate", when(datetime.now(UTC) + timedelta(seconds=notice_s)))
        self.happened(f"is told that it will be taken in {notice_s:g} s", id)
        timer = threading.Timer(notice_s, lambda: self._work.submit(instance.end, TAKEN, POWER_OFF_S, "is taken"))
        timer.daemon = True
        timer.start()

    def rebalance(self, id: str) -> None:
        """Recommend to leave an instance, which may be taken some time. Raises UnknownInstance."""
        self._instance(id).rebalance = when(datetime.now(UTC))
        self.happened("is recommended for rebalancing", id)

    def crash(self, id: str) -> None:
        """Take an instance at once, without a notice. Raises UnknownInstance."""
        self.happened("crashes", id)
        self._instance(id).end(TAKEN, 0.0, "is gone")

    def refuse(self, times: int) -> None:
        """Have no capacity for the next `times` fleets."""
        self._api.refuse(times)

    def mute(self, times: int) -> None:
        """Boot the next `times` instances with their network cut, so that nobody hears of them."""
        self._mute += times

    # What it is made of.

    @contextmanager
    def up(self) -> Iterator[GuestCloud]:
        """Answer calls and boot instances while inside `with`. Raises NoLocalEc2."""
        from moto.ec2.models import ec2_backends
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        self._ground.consoles.mkdir(parents=True, exist_ok=True)
        network.lay()
        signatory = Signatory()
        self.certificate.write_text(signatory.certificate)
        self._moto = ec2_backends[ACCOUNT][REGION]
        self.image = _image(self._moto)
        self._api = Api(DomainDispatcherApplication(create_backend_app), SpotPrices(), self.happened)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        calls = make_server(network.GATEWAY, PORT, self._api, threaded=True, request_handler=MotoRequestHandler)
        stop = threading.Event()
        threads = [threading.Thread(target=calls.serve_forever), threading.Thread(target=self._keep, args=(stop,))]
        try:
            with ImdsServer((network.IMDS, 80), self._facts_at, signatory.sign).running():
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
        """Addresses may be given again, so the youngest instance has it."""
        instance = next((each for each in reversed(self._instances.values()) if each.address == address), None)
        return None if instance is None else instance.facts()

    def _keep(self, stop: threading.Event) -> None:
        """Boot what moto has and nobody booted, end what it no longer has, and tell it what went off by itself."""
        while not stop.wait(LOOK_S):
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
        except Exception as error:  # it shows where people look: nobody waits for this thread
            self.happened(f"does not boot: {error}", instance.id)


def _image(moto: Any) -> str:
    """Register an image of this account, tagged as gridml's. moto forgets what a call says of the machine."""
    image = moto.register_image(name="gridml-local")
    image.architecture, image.virtualization_type = "x86_64", "hvm"
    image.add_tag("gridml", "image")
    return str(image.id)
