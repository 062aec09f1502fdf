"""What a service tells systemd of itself (sd_notify(3)); where systemd did not start it, nobody is told."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state such as "READY=1". Raises OSError."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
        # '@' stands for the zero byte that an abstract address begins with
        line.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
