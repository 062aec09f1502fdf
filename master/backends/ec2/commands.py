"""`gridml ec2 check` and `gridml ec2 sweep`: is all there that a run needs, and has none left anything behind."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from gridml.errors import RunError, UsageError
from gridml.protocol.text import printable

_Region = Annotated[
    str | None, typer.Option(help="Otherwise what AWS_REGION or the AWS configuration says.", show_default=False)
]


def sweep(
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this run, as its tag gridml:run says.", show_default=False)
    ] = None,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Only runs whose instances were all launched longer ago, as 1h.")
    ] = "0s",
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; otherwise it is only shown.")] = False,
    region: _Region = None,
) -> None:
    """Find what runs that are over have left on EC2, and remove it.

    Instances, launch templates and security groups with the tag gridml:run, whatever crashed. Runs that a master
    drives are left alone, and those of other machines unless they are named.
    """
    from chunk_model.lifetime import LifetimeError, parse_duration
    from master.backends.ec2.cloud import Cloud
    from master.backends.ec2.sweep import find, swept

    try:
        older_than_s = parse_duration(older_than)
    except LifetimeError as error:
        raise UsageError(f"--older-than: {error}") from error
    cloud = Cloud(region)
    found = find(cloud, run, older_than_s, time.time())
    if not found:
        _say(f"Nothing of gridml's is left in {cloud.region}.")
    for each in found:
        if not each.swept:
            _say(f"{each.run}: {each.made}; stays: {each.reason}")
        elif yes:
            _say(f"{each.run}: removed {swept(cloud, each)}")
        else:
            _say(f"{each.run}: {each.made}; would be removed with --yes: {each.reason}")


def check(
    region: _Region = None,
    image: Annotated[str | None, typer.Option(metavar="AMI", help="Otherwise the newest.", show_default=False)] = None,
    identity_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Otherwise the region's own.", show_default=False)
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="Where instances reach this machine.", show_default=False)
    ] = None,
) -> None:
    """Look whether gridml launch would find what it needs: credentials, permissions, an image, an address.

    Permissions are asked for with DryRun, so nothing is made.
    """
    from master.backends.ec2.checks import checks

    failed = 0
    for each in checks(region, image, identity_certificate, address):
        failed += not each.good
        _say(f"{'ok     ' if each.good else 'MISSING'} {each.what}: {each.found}")
    if failed:
        raise RunError(f"{failed} of these must be mended before gridml launch can work; docs/ec2.md says how.")


def _say(text: str) -> None:
    typer.echo(printable(text, sys.maxsize))
