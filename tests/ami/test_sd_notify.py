"""The datagram that systemd waits for."""

from __future__ import annotations

import socket
from pathlib import Path

from ami.daemon import notify


def test_systemd_is_notified(tmp_path: Path) -> None:
    for address in (str(tmp_path / "notify"), f"@{tmp_path.name}-notify"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(address.replace("@", "\0"))
            systemd.settimeout(10)
            notify("READY=1", {"NOTIFY_SOCKET": address})
            assert systemd.recv(100) == b"READY=1"


def test_without_a_socket_there_is_no_notification() -> None:
    notify("READY=1", {})
