"""Read the descriptions of Amazon's services once; botocore reads them again for each session (0.4 s)."""

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
    """Let botocore reuse descriptions that it has read."""
    from botocore.loaders import JSONFileLoader

    reader = _reader()
    monkeypatch.setattr(JSONFileLoader, "_load_file", lambda loader, path, opened: reader(path, opened))
