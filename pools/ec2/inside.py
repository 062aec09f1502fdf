"""Run a command inside a local EC2, in namespaces that end with it."""

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
    """The command that makes the namespaces, starts a cloud in them and runs `inner` there; its exit status is that of
    `inner`. `folder` gets consoles and the certificate."""
    cloud = [sys.executable, "-m", "pools.ec2.inside", str(folder), *map(str, root.layers)]
    return [*ALONE, *cloud, "--", *inner]


def environment(more: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What `command` is run with: this checkout comes first."""
    return {**more, "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), more.get("PYTHONPATH", "")]))}


def _main(arguments: Sequence[str]) -> int:
    """Start the cloud in the namespaces that this process was started in, and run the command."""
    from pools.ec2.control import VARIABLE, served
    from pools.ec2.guest_cloud import URL, GuestCloud
    from pools.ec2.instances import REGION

    split = arguments.index("--")
    folder, *layers = map(Path, arguments[:split])
    # The first process of a namespace ignores every signal that it has no handler for.
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
    """Nothing of a real account, and no proxy: calls must end here."""
    return {n: v for n, v in variables.items() if not n.startswith("AWS_") and not n.lower().endswith("_proxy")}


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
