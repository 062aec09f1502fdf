"""`gridml ami`: builds, lists and removes the machine images (AMIs) that EC2 workers boot."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from gridml.cli.arguments import Json, add, echo, print_result, takes_options
from gridml.errors import UsageError
from master.state.options import FIRST, option

_REGION = "AWS region. Default: AWS_REGION or the AWS configuration."
_Region = Annotated[str | None, typer.Option(help=_REGION, show_default=False)]


@dataclass(frozen=True)
class StageOptions:
    """The part of an image's contents that the user chooses."""

    PANEL: ClassVar[str] = FIRST
    packages: tuple[str, ...] = option((), "pip requirement to install for programs; repeatable.", flags=("--package",))
    constraints: Path | None = option(None, "pip constraints file: versions to install.", metavar="FILE")
    pip_conf: Path | None = option(None, "pip.conf, for example for an index with a CPU-only torch.", metavar="FILE")


@dataclass(frozen=True)
class _MachineOptions:
    """The instance that builds an image, and the image's architecture and disk."""

    region: str | None = option(None, _REGION)
    base: str | None = option(None, "Debian 12 image to build on. Default: the newest.", metavar="AMI")
    architecture: str = option("x86_64", "CPU architecture: x86_64 or arm64.")
    type: str | None = option(None, "Build instance. Default: t3.medium; for arm64 t4g.medium.", metavar="TYPE")
    subnet: str | None = option(None, "Subnet with internet access for the build. Default: the default VPC.")
    # A typer option with a range, because this table does not call `check_bounds`: typer checks and shows the range.
    disk: Annotated[
        int,
        typer.Option(min=8, max=1024, help="Disk size in GiB; torch with CUDA needs 32.", rich_help_panel=FIRST),
    ] = 16


@dataclass(frozen=True)
class BuildOptions(StageOptions, _MachineOptions):
    """All options of `gridml ami build`."""


def application() -> typer.Typer:
    """Return the application with the subcommands of `gridml ami`."""
    app = typer.Typer(help="Build and manage the machine image that EC2 workers boot.", no_args_is_help=True)
    add(app, build)
    add(app, list_, "list")
    add(app, remove)
    add(app, stage)
    return app


@takes_options(BuildOptions)
def build(options: BuildOptions, as_json: Json = False) -> None:
    """Build an image. This starts an instance for a few minutes; it is always terminated, even if the build fails.

    Example: gridml ami build --region eu-central-1 --package torchvision
    """
    from ami import build as building
    from ami.images import ARCHITECTURES, connect

    if options.architecture not in ARCHITECTURES:
        raise UsageError(f"--architecture is {options.architecture!r}; expected {' or '.join(ARCHITECTURES)}.")
    additions = building.Additions(options.packages, options.constraints, options.pip_conf)
    machine = options.architecture, options.base, options.type, options.subnet, options.disk
    # Progress goes to stderr: with --json, stdout is for the result alone.
    ec2, s3 = connect("ec2", options.region), connect("s3", options.region)
    image = building.build(ec2, s3, building.WantedImage(*machine, additions), partial(echo, err=True))
    print_result(asdict(image), f"{image.id} is ready: gridml launch uses a region's newest image.", as_json=as_json)


def list_(region: _Region = None, as_json: Json = False) -> None:  # not `list`, which would hide the builtin
    """List the images that gridml built in a region, newest first.

    Example: gridml ami list --region eu-central-1
    """
    from ami.images import connect, own

    ec2 = connect("ec2", region)
    images = own(ec2)
    lines = [
        f"{each.id}  {each.created[:16]:16}  gridml {each.version}  {each.architecture}  {each.state}  {each.name}"
        for each in images
    ]
    none = f"No image was built by gridml in {ec2.meta.region_name}. Build one: gridml ami build"
    print_result([asdict(image) for image in images], *(lines or [none]), as_json=as_json)


def remove(
    ids: Annotated[list[str], typer.Argument(metavar="AMI...", help="Images built by gridml.", show_default=False)],
    region: _Region = None,
    as_json: Json = False,
) -> None:
    """Remove images and their snapshots. Running instances are not affected.

    Example: gridml ami remove ami-0123456789abcdef0
    """
    from ami import images

    removed = images.remove(images.connect("ec2", region), ids)
    lines = (
        f"Removed {image.id} ({image.name}) and {', '.join(image.snapshots) or 'no snapshot'}." for image in removed
    )
    print_result([asdict(image) for image in removed], *lines, as_json=as_json)


@takes_options(StageOptions)
def stage(
    options: StageOptions,
    folder: Annotated[Path, typer.Argument(help="Target folder: empty or not yet existing.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Write an image's files to a folder, to build it with Packer or in a chroot: there root runs install.sh.

    Example: gridml ami stage image && packer build -var folder=image image/worker.pkr.hcl
    """
    from ami import build

    build.stage(folder, build.Additions(options.packages, options.constraints, options.pip_conf))
    files = sorted(file.name for file in folder.iterdir())
    print_result({"folder": str(folder), "files": files}, f"{folder} contains {', '.join(files)}.", as_json=as_json)
