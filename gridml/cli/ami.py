"""`gridml ami`: the image that instances boot, made, listed and removed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from gridml.cli.arguments import Json, say
from gridml.errors import UsageError

BUILD = "Example: gridml ami build --region eu-central-1 --package torchvision"
LIST = "Example: gridml ami list --region eu-central-1"
REMOVE = "Example: gridml ami remove ami-0123456789abcdef0"
STAGE = "Example: gridml ami stage image && packer build -var folder=image image/worker.pkr.hcl"

_Region = Annotated[
    str | None, typer.Option(help="Otherwise what AWS_REGION or the AWS configuration says.", show_default=False)
]
_Packages = Annotated[
    list[str], typer.Option("--package", help="A requirement of pip that programs need; repeat it.", show_default=False)
]
_Constraints = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Versions that pip keeps to.", show_default=False)
]
_PipConf = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A pip.conf: where packages come from, such as an index that has torch without CUDA.",
        show_default=False,
    ),
]


def application() -> typer.Typer:
    """The commands below `gridml ami`."""
    app = typer.Typer(help="The image that instances of EC2 boot.", no_args_is_help=True)
    app.command("build", epilog=BUILD)(build)
    app.command("list", epilog=LIST)(list_)
    app.command("remove", epilog=REMOVE)(remove)
    app.command("stage", epilog=STAGE)(stage)
    return app


def build(
    region: _Region = None,
    base: Annotated[
        str | None,
        typer.Option(metavar="AMI", help="A Debian 12 to build on; otherwise the newest.", show_default=False),
    ] = None,
    architecture: Annotated[str, typer.Option(help="x86_64 or arm64.")] = "x86_64",
    type_: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="TYPE", help="Of the instance that makes it: t3.medium or t4g.medium.", show_default=False
        ),
    ] = None,
    subnet: Annotated[
        str | None,
        typer.Option(help="Where that instance is, with a way out; otherwise the default network.", show_default=False),
    ] = None,
    disk: Annotated[int, typer.Option(min=8, max=1024, help="GiB of the image's disk; 32 for torch with CUDA.")] = 16,
    packages: _Packages = [],  # noqa: B006
    constraints: _Constraints = None,
    pip_conf: _PipConf = None,
    as_json: Json = False,
) -> None:
    """Make an image. An instance runs for some minutes to make it, and is removed whatever happens."""
    from ami import build as building
    from ami.build import Additions
    from ami.images import ARCHITECTURES, connect

    if architecture not in ARCHITECTURES:
        raise UsageError(f"--architecture is {architecture!r}; expected {' or '.join(ARCHITECTURES)}.")
    additions = Additions(tuple(packages), constraints, pip_conf)
    wanted = building.WantedImage(architecture, base, type_, subnet, disk, additions)
    ec2, s3 = connect("ec2", region), connect("s3", region)
    image = building.build(ec2, s3, wanted, lambda text: say(text, err=True))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(image), indent=2))
    else:
        say(f"{image.id} is there. gridml launch takes the newest image of its region.")


def list_(region: _Region = None, as_json: Json = False) -> None:
    """List the images that gridml made in a region, the newest first."""
    from ami import images
    from ami.images import connect

    ec2 = connect("ec2", region)
    images_made = images.own(ec2)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(image) for image in images_made], indent=2))
        return
    for image in images_made:
        made = f"{image.created[:16]:16}  gridml {image.version}  {image.architecture}  {image.state}"
        say(f"{image.id}  {made}  {image.name}")
    if not images_made:
        say(f"gridml made no image in {ec2.meta.region_name}. Make one: gridml ami build")


def remove(
    ids: Annotated[list[str], typer.Argument(metavar="AMI...", help="Images that gridml made.", show_default=False)],
    region: _Region = None,
    as_json: Json = False,
) -> None:
    """Remove images, and the snapshots that they are made of. Instances that run go on."""
    from ami import images
    from ami.images import connect

    removed = images.remove(connect("ec2", region), ids)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(image) for image in removed], indent=2))
        return
    for image in removed:
        say(f"Removed {image.id} ({image.name}) and {', '.join(image.snapshots) or 'no snapshot'}.")


def stage(
    folder: Annotated[Path, typer.Argument(help="An empty folder, or none.", show_default=False)],
    packages: _Packages = [],  # noqa: B006
    constraints: _Constraints = None,
    pip_conf: _PipConf = None,
    as_json: Json = False,
) -> None:
    """Put all that an image is made of into a folder, for Packer or for a chroot: root runs install.sh in it."""
    from ami import build

    build.stage(folder, build.Additions(tuple(packages), constraints, pip_conf))
    files = sorted(file.name for file in folder.iterdir())
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "files": files}, indent=2))
    else:
        say(f"{folder} has {', '.join(files)}.")
