"""Commands of the command line, called from the outside."""

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
    """Calls the module's COMMAND in a folder of its own: (exit status, stdout, stderr)."""
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
    """Gives a command line that is wrong, in a folder of its own: ends with a status, and one message that has all of
    `words` (whatever breaks its lines) and shows no line of gridml's own; returns stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def call(arguments: Sequence[str | Path], status: int, *words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main.main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        said = " ".join(err.split())
        assert ended.value.code == status, out + err
        assert len(said) < 60_000, len(said)
        for word in words:
            assert word in said, said
        assert OURS not in err and "/commands/" not in err, err
        assert ESCAPE not in out + err
        return err

    return call


@pytest.fixture
def answer(capfd: pytest.CaptureFixture[str], mistake: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """Gives a command line that is wrong to be answered in JSON: returns the last object on stdout."""

    def call(arguments: Sequence[str | Path]) -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            main.main([str(a) for a in arguments])
        out, _ = capfd.readouterr()
        found = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
        assert found[-1]["exit_status"] == ended.value.code
        return dict(found[-1])

    return call
