"""Commands of the command line, called from the outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gridml import cli


@pytest.fixture
def gridml(
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[int, str, str]]:
    """Calls the module's COMMAND in a folder of its own: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([request.module.COMMAND, *arguments])
        out, err = capfd.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return code or 0, out, err

    return call
