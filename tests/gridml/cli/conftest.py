"""Fixtures that call the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gridml.cli import main

OURS = str(Path(main.__file__).parents[1] / "gridml")
ESCAPE = "\x1b"


@pytest.fixture
def gridml(
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[int, str, str]]:
    """A function that calls the module's COMMAND in a temporary folder and returns (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main.main([request.module.COMMAND, *arguments])
        out, err = capfd.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return code or 0, out, err

    return call


@pytest.fixture
def mistake(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A function that runs an invalid command line in a temporary folder, checks its exit status (or one of
    several) and that stderr is one message with all of `words` (ignoring line breaks) and no traceback of gridml, and
    returns stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def call(arguments: Sequence[str | Path], status: int | tuple[int, ...], *words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main.main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        said = " ".join(err.split())
        assert ended.value.code in (status if isinstance(status, tuple) else (status,)), out + err
        assert len(said) < 60_000, len(said)
        for word in words:
            assert word in said, said
        assert OURS not in err and "/commands/" not in err, err
        assert ESCAPE not in out + err
        return err

    return call


@pytest.fixture
def answer(capfd: pytest.CaptureFixture[str], mistake: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """A function that runs an invalid command line with --json and returns the last object on stdout."""

    def call(arguments: Sequence[str | Path]) -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            main.main([str(a) for a in arguments])
        out, _ = capfd.readouterr()
        found = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
        assert found[-1]["exit_status"] == ended.value.code
        return dict(found[-1])

    return call
