"""The list of files, as Markdown: each module of the five packages with the first paragraph of its docstring."""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path

PACKAGES = ("gridml", "chunk_model", "master", "remote", "ami", "pools")


def files_page(root: Path) -> str:
    """Return the page: a section for each folder below `root`, a row for each file.

    Raises ValueError for a file without a docstring: it would stand in the list without a purpose.
    """
    lines = ["# Files", "", "Every module, by folder, with the first paragraph of its docstring.", ""]
    paths = sorted((path for package in PACKAGES for path in (root / package).rglob("*.py")), key=_folder_first)
    for folder, members in groupby(paths, key=lambda path: path.parent):
        rows = [f"| `{path.name}` | {purpose}|" for path in members if (purpose := _purpose(path))]
        if rows:
            lines += [f"## {folder.relative_to(root)}/", "", "| file | |", "|-|-|", *rows, ""]
    return "\n".join(lines)


def _folder_first(path: Path) -> tuple[str, str]:
    # Sorted by path alone, files of subfolders would stand between those of a folder, and `groupby` would split it.
    return path.parent.as_posix(), path.name


def _purpose(path: Path) -> str:
    """Return a module's first paragraph on one line, nothing for an empty `__init__.py`."""
    text = path.read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(text))
    if docstring is None:
        if text.strip() or path.name != "__init__.py":
            raise ValueError(f"{path} has no docstring; begin it with what the module does.")
        return ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return paragraph.replace("|", "\\|") + " "
