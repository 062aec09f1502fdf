"""A master that kills itself with SIGKILL at a commit point: `dying_master.py PROGRAM RUN POINT NTH [PLACEMENT]`, POINT
"" to live on."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

from master.launch import resume, start
from master.ports.environment import Environment
from master.store.settings import Settings


def main() -> None:
    program, root, point, nth = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    spec = importlib.util.spec_from_file_location("support", Path(__file__).parent.parent / "conftest.py")
    assert spec is not None and spec.loader is not None
    support = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(support)
    seen = 0

    def hook(reached: str) -> None:
        nonlocal seen
        seen += reached == point
        if reached == point and seen == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    environment = Environment(support.local_pool(), hook=hook)
    if (root / "ledger.db").exists():
        run = resume(root, environment)
    else:
        placement = sys.argv[5] if len(sys.argv) > 5 else None
        settings = Settings(program=program, workers=2, push_every=50, chunk=250, placement=placement)
        run = start(settings, root, environment)
    with run:
        run.finish()


if __name__ == "__main__":
    main()
