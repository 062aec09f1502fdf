"""The settings of a run are restored with the options of its back end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridml.errors import LedgerError
from master.backends.local_plugin import LocalOptions
from master.backends.registry import batch_of, read_settings
from master.store.rundir import RunDirectory
from master.store.settings import Settings, write_settings


def test_settings_come_back_and_what_is_no_settings_is_named(tmp_path: Path) -> None:
    settings = Settings(program=tmp_path / "digits.py", workers=3, options=LocalOptions(lifetime="exponential(1h)"))
    sha256 = write_settings(RunDirectory(tmp_path), settings)
    assert read_settings(tmp_path, sha256) == settings
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(LedgerError, match=r"settings\.json cannot be read"):
        read_settings(tmp_path, sha256)


def test_a_run_whose_settings_are_gone_has_no_batch_system_that_could_be_asked(tmp_path: Path) -> None:
    assert batch_of(tmp_path) is None
