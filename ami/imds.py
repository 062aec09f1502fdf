"""What an instance of EC2 can know of itself: a client of the instance metadata service, version 2."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

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
class Interruption:
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

    def interruption(self) -> Interruption | None:
        """What EC2 says that it will do to this spot instance; None as long as it says nothing."""
        text = self.get("meta-data/spot/instance-action")
        if text is None:
            return None
        try:
            values = json.loads(text)
            return Interruption(str(values["action"]), str(values["time"]))
        except (ValueError, TypeError, KeyError):
            # That there is something to say is what counts: the worker must not stay for a word it cannot read.
            return Interruption("unknown", "unknown")

    def rebalance(self) -> str | None:
        """When EC2 recommended to move elsewhere, ISO 8601 in UTC; None where it did not."""
        text = self.get("meta-data/events/recommendations/rebalance")
        if text is None:
            return None
        try:
            return str(json.loads(text)["noticeTime"])
        except (ValueError, TypeError, KeyError):
            return "unknown"

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
