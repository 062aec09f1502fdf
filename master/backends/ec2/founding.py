"""What all instances of a run have in common, made by its first master and kept: their site, their token, tags."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from dataclasses import replace

from gridml.errors import RunError
from master.backends.ec2.cloud import Cloud
from master.backends.ec2.options import Ec2Options
from master.backends.ec2.site import Site, find_site
from master.sftp.roster import FOLDER, FleetFacts, Roster
from master.store.rundir import RunDirectory

TOKEN = "token"  # file beside the roster; only its owner reads it
"""What instances show when they enrol. A later master starts more of them with the same."""


def site_of(cloud: Cloud, options: Ec2Options, roster: Roster) -> Site:
    """Where the run's instances are: those of a later master have the image of the first, unless its user says."""
    facts = roster.facts
    return find_site(cloud, options if facts is None else replace(options, image=options.image or facts.image))


def founded(directory: RunDirectory, roster: Roster, site: Site) -> tuple[FleetFacts, str]:
    """What the run's instances must show, and the token: made by its first master, and kept. Raises RunError where the
    run belongs to another account or region."""
    facts, path = roster.facts, directory.root / FOLDER / TOKEN
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if facts is not None and (facts.account, facts.region) != (site.account, site.region):
        raise RunError(
            f"{directory.root} has its instances in {facts.region} of account {facts.account}, and the credentials are "
            f"of {site.account} in {site.region}. Use those of {facts.account}."
        )
    token = path.read_text() if facts is not None and path.exists() else secrets.token_urlsafe(32)
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
    name = re.sub(r"[^A-Za-z0-9-]+", "-", directory.place.name).strip("-")[:60]
    facts = FleetFacts(
        run=f"{name}-{secrets.token_hex(4)}" if facts is None else facts.run,
        token_sha256=hashlib.sha256(token.encode()).hexdigest(),
        account=site.account,
        region=site.region,
        image=site.image.id,
        certificate=site.certificate,
    )
    roster.found(facts)
    return facts, token


def place_of(directory: RunDirectory) -> str:
    """Return where a run lies, as a tag says it."""
    return re.sub(r"[^A-Za-z0-9 _.:/=+@-]", "-", f"{socket.gethostname()}:{directory.place}")[:256]
