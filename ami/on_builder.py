"""Runs on the instance that an image is made of: its user data are this file, and a call of `build`.

So it stands alone, on the Python of the base image. It fetches the staged folder, runs `install.sh`, says how that
went, and switches the instance off.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path

MAX_OUTPUT_CHARS = 4_000  # characters of what the script said that are told
_TIMEOUT_S = 60
# cloud-init still writes when its last script has ended, and keeps the user data: it goes when cloud-init has gone.
# What cannot be cleaned does not switch itself off, and so becomes no image.
_LAST = (
    "timeout 300 cloud-init status --wait >/dev/null 2>&1; "
    "sh {folder}/clean.sh && rm -rf {folder} && systemctl poweroff"
)


def build(archive_url: str, sha256: str, result_url: str) -> None:
    """Make this machine's root an image."""
    folder = Path(tempfile.mkdtemp(prefix="gridml-image-", dir="/var/tmp"))
    try:
        status, said = _install(folder, archive_url, sha256)
    except Exception as error:
        status, said = 1, f"{type(error).__name__}: {error}"
    try:
        result = json.dumps({"status": status, "said": said[-MAX_OUTPUT_CHARS:]}).encode()
        request = urllib.request.Request(result_url, result, {"Content-Type": "application/json"}, method="PUT")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            pass
    finally:
        last = _LAST.format(folder=folder) if status == 0 else "systemctl poweroff"
        subprocess.run(["systemd-run", "--no-block", "--collect", "sh", "-c", last], check=True)


def _install(folder: Path, archive_url: str, sha256: str) -> tuple[int, str]:
    """Return the exit status of the script, and what it said."""
    with urllib.request.urlopen(archive_url, timeout=_TIMEOUT_S) as answer:
        content = answer.read()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        return 1, f"what was fetched has the SHA-256 {found}, expected {sha256}"
    subprocess.run(["tar", "-xz", "-C", str(folder)], input=content, check=True)
    done = subprocess.run(
        ["sh", str(folder / "install.sh"), "--unclean"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    print(done.stdout, flush=True)  # to the console
    return done.returncode, done.stdout
