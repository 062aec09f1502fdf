"""The certificates with whose keys Amazon signs identity documents, as they came with gridml."""

from __future__ import annotations

import re
from importlib import resources

_ONE = re.compile(
    r"^# ([a-z0-9-]+)\n(-----BEGIN CERTIFICATE-----\n.*?-----END CERTIFICATE-----\n)", re.MULTILINE | re.DOTALL
)


def certificate_of(region: str) -> str | None:
    """Return a region's certificate (PEM), None for a region that Amazon opened since."""
    return certificates().get(region)


def certificates() -> dict[str, str]:
    """Return the certificates (PEM) by region."""
    text = resources.files(__package__).joinpath("identity_certificates.pem").read_text(encoding="ascii")
    return dict(_ONE.findall(text))
