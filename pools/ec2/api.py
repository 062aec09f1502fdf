"""The API of a local EC2: a WSGI layer around moto, with idempotency tokens, lack of capacity, and prices."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

PORT = 5000
NO_CAPACITY = "InsufficientInstanceCapacity"
DEFAULT_PRICE = 0.05  # spot price, in dollars per hour, of an instance type without a configured price
FULL = 3.0  # on-demand price divided by spot price
_JSON, _XML = "application/x-amz-json-1.1", "text/xml;charset=UTF-8"
_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
# Parameters of a request, and their names in an answer.
_OVERRIDES = {"InstanceType": "instanceType", "SubnetId": "subnetId", "AvailabilityZone": "availabilityZone"}
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_Form = Mapping[str, str]


@dataclass(frozen=True)
class SpotPrices:
    """Spot prices in dollars per hour, a pure function of type, zone and time."""

    usual: Mapping[str, float] = field(default_factory=dict)  # price by type
    zones: tuple[str, ...] = ("us-east-1a", "us-east-1b")
    every: timedelta = timedelta(hours=6)  # between two changes

    def history(self, type: str, zone: str, start: datetime, end: datetime) -> list[tuple[datetime, float]]:
        """Return the price changes until `end`, newest first. The last one is the price in force at `start`."""
        epoch = datetime(2024, 1, 1, tzinfo=UTC)
        first, last = ((moment - epoch) // self.every for moment in (start, end))
        return [(epoch + n * self.every, self._price(type, zone, n)) for n in range(last, first - 1, -1)]

    def _price(self, type: str, zone: str, n: int) -> float:
        dearer = 1 + 0.1 * self.zones.index(zone) if zone in self.zones else 1
        return round(self.usual.get(type, DEFAULT_PRICE) * dearer * (1 + 0.05 * (n % 4)), 6)


class Api:
    """A WSGI application around moto's. It calls `happened` with a description of what it does in place of moto."""

    def __init__(self, moto: _Application, prices: SpotPrices, happened: Callable[[str], None]) -> None:
        self._moto, self._prices, self._happened = moto, prices, happened
        self._refusals = 0  # number of fleets still to refuse
        # First answer (status, headers, body) by (action, token). A repeated token gets it again, as on EC2 but not in
        # moto.
        self._answers: dict[tuple[str, str], tuple[str, list[tuple[str, str]], bytes]] = {}
        self._one_at_a_time = threading.Lock()  # held for each fleet, so that one token never launches twice

    def refuse(self, times: int) -> None:
        """Refuse the next `times` fleets for lack of capacity."""
        self._refusals += times

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        environ["wsgi.input"] = BytesIO(body)  # moto reads the body again
        if environ.get("HTTP_X_AMZ_TARGET", "").endswith(".GetProducts"):
            return _sent(start_response, _JSON, json.dumps(self._products(json.loads(body))))
        form = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        if form.get("Action") == "DescribeSpotPriceHistory":
            return _sent(start_response, _XML, self._price_history(form))
        if form.get("Action") == "CreateFleet" and form.get("DryRun") != "true":
            with self._one_at_a_time:
                return self._fleet(environ, start_response, form)
        return self._moto(environ, start_response)

    def _fleet(self, environ: dict[str, Any], start_response: Callable[..., Any], form: _Form) -> Iterable[bytes]:
        token = (form["Action"], form.get("ClientToken") or secrets.token_hex(8))
        if token not in self._answers:
            if self._refusals:
                self._refusals -= 1
                self._happened(f"no capacity: {NO_CAPACITY}")
                return _sent(start_response, _XML, _no_capacity(form))
            status: list[Any] = []
            body = b"".join(self._moto(environ, lambda *started: status.extend(started)))
            self._answers[token] = (status[0], status[1], body)
        else:
            self._happened("a fleet's token came again, and got its first answer")
        first, headers, body = self._answers[token]
        start_response(first, headers)
        return [body]

    def _products(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the price list's entry for a type: `FULL` times its spot price."""
        type = next(each["Value"] for each in question["Filters"] if each["Field"] == "instanceType")
        price = {"unit": "Hrs", "pricePerUnit": {"USD": f"{FULL * self._prices.usual.get(type, DEFAULT_PRICE):.10f}"}}
        product = {"serviceCode": "AmazonEC2", "terms": {"OnDemand": {"1": {"priceDimensions": {"1": price}}}}}
        return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(product)]}

    def _price_history(self, form: _Form) -> str:
        now = datetime.now(UTC)
        start, end = _time(form.get("StartTime"), now), _time(form.get("EndTime"), now)
        types = _listed(form, "InstanceType") or sorted(self._prices.usual) or ["m1.small"]
        zones = [form["AvailabilityZone"]] if form.get("AvailabilityZone") else list(self._prices.zones)
        items = [
            f"<item><instanceType>{escape(type)}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{price:.6f}</spotPrice><timestamp>{when:%Y-%m-%dT%H:%M:%S.000Z}</timestamp>"
            f"<availabilityZone>{escape(zone)}</availabilityZone></item>"
            for type, zone in itertools.product(types, zones)
            for when, price in self._prices.history(type, zone, start, min(end, now))
        ]
        return _answer("DescribeSpotPriceHistory", f"<spotPriceHistorySet>{''.join(items)}</spotPriceHistorySet>")


def _no_capacity(form: _Form) -> str:
    """Return an answer to CreateFleet with an error for each requested pool, and no instance."""
    overrides: dict[str, dict[str, str]] = {}
    for name, value in form.items():
        pool, separator, key = name.rpartition(".")
        if separator and ".Overrides." in name and key in _OVERRIDES:
            overrides.setdefault(pool, {})[key] = value
    errors = [
        f"<item><errorCode>{NO_CAPACITY}</errorCode><errorMessage>There is no Spot capacity available that matches "
        "your request.</errorMessage><lifecycle>spot</lifecycle><launchTemplateAndOverrides><overrides>"
        f"{''.join(f'<{_OVERRIDES[key]}>{escape(value)}</{_OVERRIDES[key]}>' for key, value in each.items())}"
        "</overrides></launchTemplateAndOverrides></item>"
        for each in overrides.values()
    ]
    fleet = f"<fleetId>fleet-{secrets.token_hex(16)}</fleetId>"
    return _answer("CreateFleet", f"{fleet}<errorSet>{''.join(errors)}</errorSet><fleetInstanceSet/>")


def _answer(action: str, content: str) -> str:
    request = f"<requestId>{secrets.token_hex(16)}</requestId>"
    return f'<{action}Response xmlns="{_NAMESPACE}">{request}{content}</{action}Response>'


def _sent(start_response: Callable[..., Any], kind: str, text: str) -> list[bytes]:
    body = text.encode()
    start_response("200 OK", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _listed(form: _Form, name: str) -> list[str]:
    """Return the values of name.1, name.2, ... in order."""
    values = (form.get(f"{name}.{n}") for n in itertools.count(1))
    return [value for value in itertools.takewhile(lambda value: value is not None, values) if value is not None]


def _time(text: str | None, otherwise: datetime) -> datetime:
    if not text:
        return otherwise
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
