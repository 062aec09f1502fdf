"""Print the tests of the current work, for `make quick`: those of each file that differs from the last commit or, if
none does, of each file that the last commit changed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = "test_rooms.py", "test_backends_are_named_nowhere.py"  # any file may break them


def tests_of(changed: Iterable[str], root: Path) -> list[Path]:
    """Return test files and folders: of a source file its own test file, or else the tests of its folder or of the
    nearest parent that has some."""
    tests = root / "tests"
    found = {tests / name for name in ALWAYS}
    for name in changed:
        path = root / name
        if path.suffix != ".py":
            continue
        if path.is_relative_to(tests):
            found.update(path.parent.glob(path.name if path.name.startswith("test_") else "test_*.py"))
            continue
        mirrored = tests / path.relative_to(root)
        own = mirrored.with_name(f"test_{path.name}")
        folder = next(each for each in mirrored.parents if each.is_dir())
        found.add(own if own.is_file() else folder if folder != tests else tests / ALWAYS[0])
    return sorted(each for each in found if not any(above in found for above in each.parents))


def changed_files() -> list[str]:
    """Return the existing files of the current work."""

    def git(*arguments: str) -> list[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()

    now = git("diff", "--name-only", "--diff-filter=d", "HEAD") + git("ls-files", "--others", "--exclude-standard")
    return now or git("diff", "--name-only", "--diff-filter=d", "HEAD~1")


if __name__ == "__main__":
    print(*(path.relative_to(ROOT) for path in tests_of(changed_files(), ROOT)))
