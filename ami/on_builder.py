"""Script of the builder instance: the instance's user data are this file and a call of `build`.

So this file imports only the standard library of the base image's Python. The script fetches the staged folder, runs
`install.sh`, reports the result, and shuts the instance down.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path

MAX_OUTPUT_CHARS = 4_000  # of install.sh's output, in the result
_TIMEOUT_S = 60
# cloud-init still writes files after its last script, and stores the user data, so the clean-up waits for its end.
# If the clean-up fails, the instance does not shut down, so its disk does not become an image.
_LAST = (
    "timeout 300 cloud-init status --wait >/dev/null 2>&1; "
    "sh {folder}/clean.sh && rm -rf {folder} && systemctl poweroff"
)


def build(archive_url: str, sha256: str, result_url: str) -> None:
    """Install the worker on this machine, report the result and shut down."""
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
    """Return (exit status, output) of the script."""
    with urllib.request.urlopen(archive_url, timeout=_TIMEOUT_S) as answer:
        content = answer.read()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        return 1, f"the archive has the SHA-256 {found}, expected {sha256}"
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
