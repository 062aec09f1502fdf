"""Build script of `make docs`: builds the site in build/docs/site and checks its links. Exits with 1 if one is
broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.links import broken_in_site
from docs.site.tree import ROOT, make_tree

BUILD = ROOT / "build" / "docs"


def build(build_dir: Path = BUILD) -> Path:
    """Build the site and return its folder. Raises SystemExit with zensical's output if it reports any issue."""
    make_tree(ROOT, build_dir / "texts")
    shutil.rmtree(build_dir / "site", ignore_errors=True)
    # zensical looks for `docs_dir` and `site_dir` beside its configuration.
    config = shutil.copyfile(Path(__file__).with_name("mkdocs.yml"), build_dir / "mkdocs.yml")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "-f", str(config), "--clean"]
    ended = subprocess.run(command, cwd=build_dir, capture_output=True, text=True)
    # zensical may exit with 0 although it reports issues, such as links to missing pages.
    if ended.returncode != 0 or "No issues found" not in ended.stdout + ended.stderr:
        sys.exit(f"the site was not built:\n{ended.stdout}{ended.stderr}")
    return build_dir / "site"


if __name__ == "__main__":
    site = build()
    broken = list(broken_in_site(site))
    print(f"{site.relative_to(ROOT)}: {sum(1 for _ in site.rglob('*.html'))} pages, {len(broken)} broken links")
    sys.exit("\n".join(broken) or 0)
