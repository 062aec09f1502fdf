"""The folder of which an image is made: the scripts and units of `ami/image`, the wheel, and what the user adds."""

from __future__ import annotations

import io
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from ami.wheel import write_wheel
from gridml.errors import UsageError

IMAGE = Path(__file__).parent / "image"


@dataclass(frozen=True)
class Additions:
    """What an image has of its user: more packages (requirements of pip), a file of constraints for them, and a
    pip.conf that says where they come from. The latter two are used, and do not stay in the image."""

    packages: tuple[str, ...] = ()
    constraints: Path | None = None
    pip_conf: Path | None = None


def stage(folder: Path, additions: Additions = Additions()) -> None:
    """Make a folder from which `install.sh` makes a root an image. Raises UsageError for what cannot be added, and for
    a folder that has something in it."""
    for package in additions.packages:
        if not package.strip() or package.strip().startswith(("-", "#")) or "\n" in package:
            raise UsageError(f"--package got {package!r}; expected a requirement of pip, such as 'scipy>=1.11'.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty. Name a folder that is, or is not there.")
        for file in IMAGE.iterdir():
            shutil.copy(file, folder / file.name)
        write_wheel(folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error}. Name another folder.") from error
    with (folder / "packages.txt").open("a") as packages:
        packages.writelines(f"{package.strip()}\n" for package in additions.packages)
    for source, name in ((additions.constraints, "constraints.txt"), (additions.pip_conf, "pip.conf")):
        if source is not None:
            try:
                shutil.copy(source, folder / name)
            except OSError as error:
                raise UsageError(f"{source} cannot be read: {error}. Name a file that can.") from error


def packed(folder: Path) -> bytes:
    """A staged folder as a tar file, compressed. Raises OSError."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return content.getvalue()
