"""The run's copy of the program and of the program's own modules. Workers use the copy even if the originals change."""

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

Contents = Mapping[str, bytes]  # contents of a program's files, by path relative to the program's folder


def contents_of(program: Path, folder: Path | None = None, source: bytes | None = None) -> Contents:
    """Read a program's files. Call right after the program was loaded, so that the contents are those that were
    executed.

    `source` is the content of the program's own file as it was loaded; None reads the file now. `folder` holds the
    program's own modules; None means the folder of the program. Raises OSError.
    """
    files = own_files(program, folder).files.items()
    return {n: source if source is not None and path == program else path.read_bytes() for n, path in files}


@dataclass(frozen=True)
class SavedProgram:
    """The copy of a program. An original that lies in `folder` is its own copy."""

    folder: Path  # folder of the copy
    original: Path

    @property
    def program(self) -> Path:
        """The copy of the program's own file."""
        return self.folder / self.original.name

    @property
    def _is_its_own(self) -> bool:
        """Return whether the original is the copy itself."""
        return self.original.absolute() == self.program.absolute()

    @property
    def files(self) -> set[str]:
        """Paths of the copied files, relative to the folder of the program."""
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.py") if path.is_file()}

    @property
    def entries(self) -> list[Path]:
        """Files and folders to send as the program, its own file first."""
        inside = {self.folder / name.split("/")[0] for name in self.files}
        return [self.program, *sorted(inside - {self.program})]

    def keep(self, contents: Contents) -> None:
        """Replace the copy by these contents. A kill in between leaves the old copy, the new one, or none."""
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
        """Return a digest of the copy (hexadecimal) that does not depend on the name of the program's own file."""
        return self._digest({name: (self.folder / name).read_bytes() for name in self.files})

    def repair(self, known: str | None) -> None:
        """Copy the original again if the copy is missing or has another digest than `known` (None accepts any).

        Raises LedgerError if the original, too, is missing or has another digest.
        """
        damaged = not self.program.is_file() or (known is not None and self.digest() != known)
        if not damaged or self._is_its_own:
            return
        contents = {}
        with contextlib.suppress(OSError):
            contents = dict(contents_of(self.original))
        if contents and known in (None, self._digest(contents)):
            self.keep(contents)
        # A copy that equals the original is accepted, because a master may have been killed after it made the copy and
        # before it recorded the digest.
        elif not contents or not self.program.is_file() or self._digest(contents) != self.digest():
            resume = f"gridml resume {shlex.quote(str(self.folder.parent))} --with-changes"
            raise LedgerError(
                f"{self.folder} is not the program that this run was begun with, and neither is {self.original}. "
                f"Restore the original, or use it as it is: {resume}"
            )

    def _digest(self, contents: Contents) -> str:
        named = {"" if name == self.program.name else name: content for name, content in contents.items()}
        return bundle.digest("".join(f"{bundle.digest(named[name])} {name}\n" for name in sorted(named)).encode())

    def altered(self) -> list[str]:
        """Return the names of copied files whose originals differ from the copies, or cannot be read."""
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
