"""Generated modules in a private folder: one for each SHA-256 of its source, with the machine code beside it.

numba keeps machine code in a pickle, and whoever can write it can run code as this user. So the folder belongs to the
user alone (mode 0700), and it is never carried to another machine: each compiles for itself, once.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import shutil
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def folder() -> Path:
    """Return the folder of generated modules: `stages` in GRIDML_CACHE, by default in the user's cache folder. If that
    cannot be private, a new folder, which is removed when the process ends."""
    home = os.environ.get("GRIDML_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gridml"
    )
    kept = Path(home) / "stages"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.mkdir(mode=0o700, exist_ok=True)
        if is_private(kept):
            return kept
    except OSError:
        pass
    own = Path(tempfile.mkdtemp(prefix="gridml-stages-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def is_private(path: Path) -> bool:
    """Return whether a folder belongs to this user, who can write it, and no one else may enter it."""
    found = path.lstat()
    private = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return stat.S_ISDIR(found.st_mode) and private and os.access(path, os.W_OK)


def module_of(text: str, name: str, home: Path | None = None) -> ModuleType:
    """Return the module with this source, which is written unless it is there. `name` is a part of the file's name."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    module_name = f"gridml_stage_{name}_{digest[:32]}"
    path = (folder() if home is None else home) / f"{module_name}.py"
    loaded = sys.modules.get(module_name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:
            file.write(text)
        # numba compiles again where the time of the source has changed; several processes may write it at once.
        os.utime(file.name, (0, 0))
        os.replace(file.name, path)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # before it runs: numba looks it up when it reads its cache
    spec.loader.exec_module(module)
    return module
