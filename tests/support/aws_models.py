"""The descriptions of Amazon's services, which botocore reads anew for each session (0.4 s), are read once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest


@cache
def _reader() -> Callable[..., Any]:
    from botocore.loaders import JSONFileLoader

    read = JSONFileLoader._load_file
    return cache(lambda path, opened: read(JSONFileLoader(), path, opened))


def keep_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let botocore take what it has read before, from now on."""
    from botocore.loaders import JSONFileLoader

    reader = _reader()
    monkeypatch.setattr(JSONFileLoader, "_load_file", lambda loader, path, opened: reader(path, opened))
