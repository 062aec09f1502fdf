"""Source tree of the site: Markdown files copied so that links between them work, plus the generated reference."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from docs.site.files import files_page
from docs.site.reference import commands_page, names_page

ROOT = Path(__file__).resolve().parents[2]
TEXTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/notes/*.md",
    "docs/*.png",
    "benchmarks/results/*.md",
)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")  # (address, anchor) of a link


def make_tree(root: Path, to: Path) -> None:
    """Copy the project's texts and the files that they link to into a new folder, and write the reference there."""
    shutil.rmtree(to, ignore_errors=True)
    for pattern in TEXTS:
        for path in sorted(root.glob(pattern)):
            _copy(root, path, to)
    # Texts link to files of the tree, such as examples, which the site must contain.
    for text in [*sorted(root.glob("docs/**/*.md")), root / "README.md"]:
        for address, _ in LINK.findall(text.read_text("utf-8")):
            path = (text.parent / address).resolve()
            if "://" not in address and path.is_file() and path.is_relative_to(root):
                _copy(root, path, to)
    results = to / "benchmarks" / "results"
    lines = [f"- [{path.stem}]({path.name})" for path in sorted(results.glob("*.md"))]
    (results / "index.md").write_text("\n".join(["# Results of benchmarks", "", *lines, ""]), "utf-8")
    reference = to / "docs" / "reference"
    reference.mkdir()
    (reference / "files.md").write_text(files_page(root), "utf-8")
    (reference / "names.md").write_text(names_page(), "utf-8")
    (reference / "commands.md").write_text(commands_page(), "utf-8")


def _copy(root: Path, path: Path, to: Path) -> None:
    target = to / path.relative_to(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
