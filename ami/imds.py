"""The data that an EC2 instance reads about itself: instance metadata (version 2) and start data.

The start data hold the address of the instance's master, and the token that proves that the instance belongs to the
master's fleet.
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
from gridml.dataclass_json import from_json, loads
from gridml.errors import UsageError
from gridml.protocol.foreign import ForeignFile, read_regular

ADDRESS = "http://169.254.169.254"
_TTL_S = 21_600  # validity of a token of the metadata service: 6 hours, the maximum
_SPARE_S = 60.0  # a token is renewed this long before it expires
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Identity:
    """The instance identity document."""

    document: str
    signature: str  # base64 in one line


@dataclass(frozen=True)
class EvictionNotice:
    """EC2's notice that it reclaims this instance."""

    action: str  # terminate, stop or hibernate
    time: str  # ISO 8601, UTC


class Imds:
    """Client of the metadata service at `address`. Ignores the proxies of the environment.

    Every method raises OSError if the service is unreachable or its answer is invalid.
    """

    def __init__(self, address: str = ADDRESS, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._token = ""
        self._until_s = -1.0  # time of the clock at which the token is renewed

    def identity(self) -> Identity:
        document = self._need("dynamic/instance-identity/document")
        signature = self._need("dynamic/instance-identity/signature")
        return Identity(document, "".join(signature.split()))

    def interruption(self) -> EvictionNotice | None:
        """Return EC2's notice to this spot instance; None without one."""
        said = self._said("meta-data/spot/instance-action")
        return None if said is None else EvictionNotice(said.get("action", "unknown"), said.get("time", "unknown"))

    def rebalance(self) -> str | None:
        """Return the time of EC2's rebalance recommendation, ISO 8601 in UTC; None without one."""
        said = self._said("meta-data/events/recommendations/rebalance")
        return None if said is None else said.get("noticeTime", "unknown")

    def _said(self, path: str) -> dict[str, str] | None:
        """Return the JSON object at a path; None if the path does not exist."""
        # Unreadable content becomes {}, because a notice must not be ignored even if its content is unreadable.
        text = self.get(path)
        if text is None:
            return None
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        return {name: str(value) for name, value in values.items()} if isinstance(values, dict) else {}

    def get(self, path: str) -> str | None:
        """Return the text at a path; None if the path does not exist."""
        for fresh in (False, True):
            try:
                return self._ask(f"latest/{path}", {"X-aws-ec2-metadata-token": self._valid_token()})
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    return None
                if error.code != 401 or fresh:
                    raise OSError(f"the metadata service answered {error.code} to {path}") from None
                self._until_s = -1.0  # the token is no longer valid: retry once with a new one
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
            raise OSError(f"the metadata service gave an invalid answer to {path}: {error!r}") from None


_MAX_CONFIG_BYTES = 1 << 16
_WRITTEN = "The instance's user data write it."


@dataclass(frozen=True)
class OwnInstance:
    """The start data. The script in the instance's user data writes them to `/etc/gridml/instance.json`."""

    run: str
    host: str
    port: int
    host_key: str
    fleet_token: str = dataclasses.field(repr=False)
    orphan_s: float = 900.0  # seconds of silence of the master after which the instance ends itself
    watch_s: float = 5.0  # seconds between two polls for EC2's notice that it reclaims the instance

    @property
    def master(self) -> Address:
        return Address(self.host, self.port, self.host_key)


def read(path: Path) -> OwnInstance:
    """Read the start data. Raises UsageError, whose text never quotes the file, because the file holds a secret."""
    names = {field.name for field in dataclasses.fields(OwnInstance)}
    try:
        values = loads(read_regular(path, _MAX_CONFIG_BYTES))
        instance = from_json(OwnInstance, {name: value for name, value in values.items() if name in names})
    except (OSError, ForeignFile) as error:
        raise UsageError(f"{path} cannot be read: {error}. {_WRITTEN}") from None
    except (ValueError, TypeError, AttributeError):  # their messages can quote the token
        raise UsageError(f"{path} is not what was expected: JSON with {', '.join(sorted(names))}. {_WRITTEN}") from None
    numbers = {"port": instance.port, "orphan_s": instance.orphan_s, "watch_s": instance.watch_s}
    wrong = [name for name, value in numbers.items() if not 0 < value < math.inf]
    if wrong or instance.port > 65535:
        raise UsageError(f"{path}: {' and '.join(wrong) or 'port'} is out of range. {_WRITTEN}")
    return instance
