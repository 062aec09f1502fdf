"""The copy of a program and of its own modules that a run keeps: what its workers train, whatever becomes of the
originals."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gridml.errors import LedgerError
from gridml.model.own_modules import folder_of, own_files
from gridml.protocol import bundle

Contents = Mapping[str, bytes]  # of a program's files, by their paths in its folder


def contents_of(program: Path, folder: Path | None = None, source: bytes | None = None) -> Contents:
    """Return what a program's files hold now: to be asked when it was just loaded; the program's own file holds the
    `source` that was loaded, None: what it holds now. Its own modules lie in `folder`, None: beside it. Raises
    OSError."""
    files = own_files(program, folder).files.items()
    return {n: source if source is not None and path == program else path.read_bytes() for n, path in files}


@dataclass(frozen=True)
class SavedProgram:
    """The copy in `folder` of the program `original`; a program that lies there is its own copy."""

    folder: Path
    original: Path

    @property
    def program(self) -> Path:
        """The copy of the program's own file."""
        return self.folder / self.original.name

    @property
    def _is_its_own(self) -> bool:
        """Whether there is no original but the copy itself."""
        return self.original.absolute() == self.program.absolute()

    @property
    def files(self) -> set[str]:
        """What is kept, by paths in the folder of the program."""
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.py") if path.is_file()}

    @property
    def entries(self) -> list[Path]:
        """Files and folders that, side by side, are the program elsewhere, its own file first."""
        inside = {self.folder / name.split("/")[0] for name in self.files}
        return [self.program, *sorted(inside - {self.program})]

    def keep(self, contents: Contents) -> None:
        """Keep these files and no others. Killed meanwhile, it leaves the copy as it was, the new one, or none."""
        if self._is_its_own:
            return
        new, old = (self.folder.with_name(f"{self.folder.name}.{age}") for age in ("new", "old"))
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
        for name, content in contents.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            bundle.write_atomic(new / name, content)
        if self.folder.exists():
            self.folder.rename(old)
        new.rename(self.folder)
        shutil.rmtree(old, ignore_errors=True)

    def digest(self) -> str:
        """Return what tells one copy from another, in hexadecimal; what the program's own file is called does not."""
        return self._digest({name: (self.folder / name).read_bytes() for name in self.files})

    def mend(self, known: str | None) -> None:
        """Make the copy anew of the original where it is not the one with the digest that is `known`, None for any.

        Raises LedgerError where the original is another one, too; a copy that is as the original is now was kept by a
        master that had no time to say so.
        """
        damaged = not self.program.is_file() or (known is not None and self.digest() != known)
        if not damaged or self._is_its_own:
            return
        contents = {}
        with contextlib.suppress(OSError):
            contents = dict(contents_of(self.original))
        if contents and known in (None, self._digest(contents)):
            self.keep(contents)
        elif not contents or not self.program.is_file() or self._digest(contents) != self.digest():
            resume = f"gridml resume {shlex.quote(str(self.folder.parent))} --with-changes"
            raise LedgerError(
                f"{self.folder} is not the program that this run was begun with, and neither is {self.original}. Put "
                f"that back as it was, or take it as it is: {resume}"
            )

    def _digest(self, contents: Contents) -> str:
        named = {"" if name == self.program.name else name: content for name, content in contents.items()}
        return bundle.digest("".join(f"{bundle.digest(named[name])} {name}\n" for name in sorted(named)).encode())

    def altered(self) -> list[str]:
        """Return which files that are kept are not any more what they were, or cannot be read."""
        if not self.program.is_file() or self._is_its_own:
            return []
        own = self.original.name
        names = [own, *sorted(self.files - {own})]
        return [name for name in names if _content(self._origin(name)) != _content(self.folder / name)]

    def _origin(self, name: str) -> Path:
        return self.original if name == self.original.name else folder_of(self.original) / name


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
