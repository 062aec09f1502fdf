"""The facts that an instance of EC2 has of itself: instance metadata (version 2) and its start data.

The start data say where its master is, and show that it belongs to the fleet.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gridml.carriers.sftp import Address
from gridml.dataclass_json import from_json
from gridml.errors import UsageError
from gridml.protocol.foreign import ForeignFile, read_regular

ADDRESS = "http://169.254.169.254"
_TTL_S = 21_600
_SPARE_S = 60.0  # a token is renewed so long before its end
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Identity:
    """The document that says which instance this is, and its signature, base64 in one line."""

    document: str
    signature: str


@dataclass(frozen=True)
class EvictionNotice:
    """EC2 is going to `action` this instance (terminate, stop or hibernate) at `time`, ISO 8601 in UTC."""

    action: str
    time: str


class Imds:
    """The service at `address`; nothing but it is asked, whatever the environment says of proxies.

    Every method raises OSError when it cannot be reached or answers what makes no sense.
    """

    def __init__(self, address: str = ADDRESS, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._token = ""
        self._until_s = -1.0

    def identity(self) -> Identity:
        document = self._need("dynamic/instance-identity/document")
        signature = self._need("dynamic/instance-identity/signature")
        return Identity(document, "".join(signature.split()))

    def interruption(self) -> EvictionNotice | None:
        """What EC2 says that it will do to this spot instance; None as long as it says nothing."""
        said = self._said("meta-data/spot/instance-action")
        return None if said is None else EvictionNotice(said.get("action", "unknown"), said.get("time", "unknown"))

    def rebalance(self) -> str | None:
        """When EC2 recommended to move elsewhere, ISO 8601 in UTC; None where it did not."""
        said = self._said("meta-data/events/recommendations/rebalance")
        return None if said is None else said.get("noticeTime", "unknown")

    def _said(self, path: str) -> dict[str, str] | None:
        """What lies at a path by name, nothing where it cannot be read: that there is something to say is what counts,
        and the worker must not stay for a word that nobody understands. None where there is nothing."""
        text = self.get(path)
        if text is None:
            return None
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        return {name: str(value) for name, value in values.items()} if isinstance(values, dict) else {}

    def get(self, path: str) -> str | None:
        """What lies at a path; None where there is nothing."""
        for fresh in (False, True):
            try:
                return self._ask(f"latest/{path}", {"X-aws-ec2-metadata-token": self._valid_token()})
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    return None
                if error.code != 401 or fresh:
                    raise OSError(f"the metadata service answered {error.code} to {path}") from None
                self._until_s = -1.0  # it knows this token no more: once more with another
        raise AssertionError("the second answer is taken or raised")

    def _need(self, path: str) -> str:
        text = self.get(path)
        if text is None:
            raise OSError(f"the metadata service has no {path}")
        return text

    def _valid_token(self) -> str:
        if self._clock() >= self._until_s:
            asked_s = self._clock()
            try:
                self._token = self._ask(
                    "latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(_TTL_S)}, method="PUT"
                )
            except urllib.error.HTTPError as error:
                error.close()
                raise OSError(f"the metadata service gives no token: it answered {error.code}") from None
            self._until_s = asked_s + _TTL_S - _SPARE_S
        return self._token

    def _ask(self, path: str, headers: dict[str, str], method: str = "GET") -> str:
        request = urllib.request.Request(f"{self._address}/{path}", headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                body: bytes = answer.read()
                return body.decode()
        except (http.client.HTTPException, UnicodeDecodeError) as error:
            raise OSError(f"the metadata service answered what makes no sense to {path}: {error!r}") from None


_MAX_CONFIG_BYTES = 1 << 16  # bytes
_WRITTEN = "The instance's user data write it."


@dataclass(frozen=True)
class OwnInstance:
    """The user data's `/etc/gridml/instance.json`.

    `orphan_s` is how long the master may be silent before the instance ends itself, `watch_s` how often EC2 is asked
    whether it takes the instance away; seconds.
    """

    run: str
    host: str
    port: int
    host_key: str
    fleet_token: str = dataclasses.field(repr=False)
    orphan_s: float = 900.0
    watch_s: float = 5.0

    @property
    def master(self) -> Address:
        return Address(self.host, self.port, self.host_key)


def read(path: Path) -> OwnInstance:
    """Raises UsageError, which never shows what is in the file."""
    names = {field.name for field in dataclasses.fields(OwnInstance)}
    try:
        values = json.loads(read_regular(path, _MAX_CONFIG_BYTES))
        instance = from_json(OwnInstance, {name: value for name, value in values.items() if name in names})
    except (OSError, ForeignFile) as error:
        raise UsageError(f"{path} cannot be read: {error}. {_WRITTEN}") from None
    except (ValueError, TypeError, AttributeError, RecursionError):  # what they say may quote the token
        raise UsageError(f"{path} is not what was expected: JSON with {', '.join(sorted(names))}. {_WRITTEN}") from None
    numbers = {"port": instance.port, "orphan_s": instance.orphan_s, "watch_s": instance.watch_s}
    wrong = [name for name, value in numbers.items() if not (math.isfinite(value) and value > 0)]
    if wrong or instance.port > 65535:
        raise UsageError(f"{path}: {' and '.join(wrong) or 'port'} cannot be that number. {_WRITTEN}")
    return instance
