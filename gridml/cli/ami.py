"""`gridml ami`: the image that instances boot, made, listed and removed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from gridml.cli.arguments import Json, answer, say, takes_options
from gridml.errors import UsageError
from master.state.options import FIRST, option

BUILD = "Example: gridml ami build --region eu-central-1 --package torchvision"
LIST = "Example: gridml ami list --region eu-central-1"
REMOVE = "Example: gridml ami remove ami-0123456789abcdef0"
STAGE = "Example: gridml ami stage image && packer build -var folder=image image/worker.pkr.hcl"

_REGION = "Otherwise what AWS_REGION or the AWS configuration says."
_Region = Annotated[str | None, typer.Option(help=_REGION, show_default=False)]


@dataclass(frozen=True)
class StageOptions:
    """What an image has of its user."""

    PANEL: ClassVar[str] = FIRST
    packages: tuple[str, ...] = option((), "A requirement of pip that programs need; repeat it.", flags=("--package",))
    constraints: Path | None = option(None, "Versions that pip keeps to.", metavar="FILE")
    pip_conf: Path | None = option(
        None, "A pip.conf: where packages come from, such as an index that has torch without CUDA.", metavar="FILE"
    )


@dataclass(frozen=True)
class _MachineOptions:
    """Where an image is made, on what, and of which kind of machine."""

    region: str | None = option(None, _REGION)
    base: str | None = option(None, "A Debian 12 to build on; otherwise the newest.", metavar="AMI")
    architecture: str = option("x86_64", "x86_64 or arm64.")
    type: str | None = option(None, "Of the instance that makes it: t3.medium or t4g.medium.", metavar="TYPE")
    subnet: str | None = option(None, "Where that instance is, with a way out; otherwise the default network.")
    disk: Annotated[
        int,
        typer.Option(min=8, max=1024, help="GiB of the image's disk; 32 for torch with CUDA.", rich_help_panel=FIRST),
    ] = 16


@dataclass(frozen=True)
class BuildOptions(StageOptions, _MachineOptions):
    """All of that."""


def application() -> typer.Typer:
    """The commands below `gridml ami`."""
    app = typer.Typer(help="The image that instances of EC2 boot.", no_args_is_help=True)
    app.command("build", epilog=BUILD)(build)
    app.command("list", epilog=LIST)(list_)
    app.command("remove", epilog=REMOVE)(remove)
    app.command("stage", epilog=STAGE)(stage)
    return app


@takes_options(BuildOptions)
def build(options: BuildOptions, as_json: Json = False) -> None:
    """Make an image. An instance runs for some minutes to make it, and is removed whatever happens."""
    from ami import build as building
    from ami.images import ARCHITECTURES, connect

    if options.architecture not in ARCHITECTURES:
        raise UsageError(f"--architecture is {options.architecture!r}; expected {' or '.join(ARCHITECTURES)}.")
    additions = building.Additions(options.packages, options.constraints, options.pip_conf)
    machine = options.architecture, options.base, options.type, options.subnet, options.disk
    ec2, s3 = connect("ec2", options.region), connect("s3", options.region)
    image = building.build(ec2, s3, building.WantedImage(*machine, additions), partial(say, err=True))
    answer(asdict(image), f"{image.id} is there. gridml launch takes the newest image of its region.", as_json=as_json)


def list_(region: _Region = None, as_json: Json = False) -> None:
    """List the images that gridml made in a region, the newest first."""
    from ami.images import connect, own

    ec2 = connect("ec2", region)
    images = own(ec2)
    lines = [
        f"{each.id}  {each.created[:16]:16}  gridml {each.version}  {each.architecture}  {each.state}  {each.name}"
        for each in images
    ]
    none = f"gridml made no image in {ec2.meta.region_name}. Make one: gridml ami build"
    answer([asdict(image) for image in images], *(lines or [none]), as_json=as_json)


def remove(
    ids: Annotated[list[str], typer.Argument(metavar="AMI...", help="Images that gridml made.", show_default=False)],
    region: _Region = None,
    as_json: Json = False,
) -> None:
    """Remove images, and the snapshots that they are made of. Instances that run go on."""
    from ami import images

    removed = images.remove(images.connect("ec2", region), ids)
    lines = (
        f"Removed {image.id} ({image.name}) and {', '.join(image.snapshots) or 'no snapshot'}." for image in removed
    )
    answer([asdict(image) for image in removed], *lines, as_json=as_json)


@takes_options(StageOptions)
def stage(
    options: StageOptions,
    folder: Annotated[Path, typer.Argument(help="An empty folder, or none.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Put all that an image is made of into a folder, for Packer or for a chroot: root runs install.sh in it."""
    from ami import build

    build.stage(folder, build.Additions(options.packages, options.constraints, options.pip_conf))
    files = sorted(file.name for file in folder.iterdir())
    answer({"folder": str(folder), "files": files}, f"{folder} has {', '.join(files)}.", as_json=as_json)
