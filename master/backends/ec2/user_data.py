"""What every instance of a fleet is started with: where the master is, its host key, and the fleet's token.

It is the same for all of them. Whoever may describe the launch template can read it, so the token alone lets nobody in:
an instance shows its signed identity document, too (`master/sftp/enrolment.py`).
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from gridml.carriers.sftp import host_and_port
from gridml.errors import RunError

_CONFIG = "/etc/gridml/instance.json"
_UNIT = "gridml-worker.service"


@dataclass(frozen=True)
class Door:
    """Where instances reach the master, and the key that answers there (ed25519, base64 as in OpenSSH's files)."""

    host: str
    port: int
    host_key: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def door_of(root: Path, address: str | None) -> Door:
    """Return where the SSH server of the master of a run is, as it has written down itself. Raises RunError where it
    has not."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    path = root / "sftp" / "server.json"
    try:
        kept = json.loads(path.read_text())
        public = load_ssh_private_key(kept["private_key"].encode(), None).public_key()
        text = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        port = int(kept["port"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} does not say where the master's SSH server is ({error}). Resume the run.") from error
    host = socket.getfqdn() if address is None else host_and_port(address)[0]
    return Door(host, port, text.split()[1])


def user_data(run: str, door: Door, token: str, orphan_s: float) -> str:
    """Return what cloud-init does at the first boot of an instance: a file for the boot daemon, and its start."""
    config = {"run": run, **asdict(door), "fleet_token": token, "orphan_s": orphan_s}
    written = {
        "path": _CONFIG,
        "owner": "root:gridml",
        "permissions": "0640",
        "content": json.dumps(config, indent=1) + "\n",
    }
    tasks = {"write_files": [written], "runcmd": [["systemctl", "start", "--no-block", _UNIT]]}
    return f"#cloud-config\n{json.dumps(tasks, indent=1)}\n"  # JSON is YAML
