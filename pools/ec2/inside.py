"""Execution of a command inside a local EC2, in namespaces that end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pools.ec2.machine import ALONE
from pools.ec2.root import CHECKOUT, Root

IMAGE_VARIABLE = "GRIDML_LOCAL_EC2_IMAGE"
CERTIFICATE_VARIABLE = "GRIDML_LOCAL_EC2_CERTIFICATE"


def command(root: Root, folder: Path, inner: Sequence[str]) -> list[str]:
    """Return a command that creates the namespaces, starts a cloud in them and runs `inner`, whose exit status it
    returns. Consoles and the certificate go to `folder`."""
    cloud = [sys.executable, "-m", "pools.ec2.inside", str(folder), *map(str, root.layers)]
    return [*ALONE, *cloud, "--", *inner]


def environment(more: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for `command`, with this checkout first on PYTHONPATH."""
    return {**more, "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), more.get("PYTHONPATH", "")]))}


def _main(arguments: Sequence[str]) -> int:
    """Start the cloud in this process's namespaces, and run the command."""
    from pools.ec2.control import VARIABLE, served
    from pools.ec2.guest_cloud import URL, GuestCloud
    from pools.ec2.instances import REGION

    split = arguments.index("--")
    folder, *layers = map(Path, arguments[:split])
    # The first process of a PID namespace ignores signals without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    cloud = GuestCloud(Root(tuple(layers)), folder)
    with cloud.up(), served(cloud) as control:
        variables = {
            **_without_credentials(os.environ),
            **{"AWS_ENDPOINT_URL": URL, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"},
            **{"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"},
            **{VARIABLE: control, IMAGE_VARIABLE: cloud.image, CERTIFICATE_VARIABLE: str(cloud.certificate)},
        }
        return subprocess.run(arguments[split + 1 :], env=variables).returncode


def _without_credentials(variables: Mapping[str, str]) -> dict[str, str]:
    """Drop the credentials of a real account and proxies, so that no call leaves this machine."""
    return {n: v for n, v in variables.items() if not n.startswith("AWS_") and not n.lower().endswith("_proxy")}


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
