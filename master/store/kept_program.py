"""The copy of a program and of its own modules that a run keeps: what its workers train, whatever becomes of the
originals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gridml.model.own_modules import own_files
from gridml.protocol import bundle


@dataclass(frozen=True)
class KeptProgram:
    """The copy in `folder` of the program `original`; a program that lies there is its own copy."""

    folder: Path
    original: Path

    @property
    def program(self) -> Path:
        """The copy of the program's own file."""
        return self.folder / self.original.name

    @property
    def files(self) -> set[str]:
        """What is kept, by paths in the folder of the program."""
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.py") if path.is_file()}

    @property
    def entries(self) -> list[Path]:
        """Files and folders that, side by side, are the program elsewhere, its own file first."""
        inside = {self.folder / name.split("/")[0] for name in self.files}
        return [self.program, *sorted(inside - {self.program})]

    def keep(self) -> None:
        """Copy all of it as it is now."""
        self.folder.mkdir(exist_ok=True)
        if self.original == self.program:
            return
        files = own_files(self.original)
        for name, path in files.items():
            copy = self.folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            bundle.write_atomic(copy, path.read_bytes())
        for name in self.files - files.keys():
            (self.folder / name).unlink()

    def digest(self) -> str:
        """Return what tells one copy from another, in hexadecimal; what the program's own file is called does not."""
        own = self.program.name
        named = {"" if name == own else name: (self.folder / name).read_bytes() for name in self.files}
        return bundle.digest("".join(f"{bundle.digest(named[name])} {name}\n" for name in sorted(named)).encode())

    def altered(self) -> list[str]:
        """Return which files are not any more what is kept of them."""
        if not self.program.is_file() or self.original == self.program:
            return []
        now = own_files(self.original) if self.original.is_file() else {}
        names = dict.fromkeys([self.original.name, *now, *sorted(self.files)])
        return [name for name in names if _content(self.original.parent / name) != _content(self.folder / name)]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
