"""A worker that reaches a server with a wrong host key sends nothing, trains nothing and leaves."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gridml.carriers.sftp import Credential, Sftp
from master.sftp.server import MailServer
from remote import worker


def test_a_wrong_host_key_stops_a_worker(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder in ("run/mail/w1", "other", "job"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "job")
    monkeypatch.setattr(worker, "PATIENCE_S", 0.0)
    server, other = (MailServer(tmp_path / name, "127.0.0.1") for name in ("run", "other"))
    try:
        server.make("w1")
        credential = Credential.read(tmp_path / "run" / "sftp" / "w1")
        Path("w1").write_text(credential.to_json())
        assert Sftp().connect("w1", None).list() == ["w1"]  # everything else is right
        Path("w1").write_text(replace(credential, host_key=other.address.host_key).to_json())
        status = worker.main(["--name", "w1", "--carrier", "sftp", "--program", str(programs / "counts.py")])
    finally:
        server.close()
        other.close()
    assert status == 8 and "another server answers" in capfd.readouterr().err
    assert os.listdir(tmp_path / "run" / "mail" / "w1") == []
