"""`gridml watch --page`: serve the page of a run until somebody ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import typer

from gridml.protocol.text import printable
from master.store.rundir import command
from master.views.page.server import PageServer, serving


def serve_page(run: Path, port: int, wait: Callable[[], object] | None = None) -> None:
    """Serve the page of a run, say where, and return when `wait` does, or at Ctrl-C; without it, then alone.

    Raises LedgerError, and UsageError for a port that is taken.
    """
    server = PageServer(run, port)
    try:
        server.facts.now()  # what is wrong with the run is said here
        with serving(server):
            typer.echo(f"The page of {printable(str(run))} is at {server.address}")
            typer.echo("It is for browsers of this machine, and for whoever has this address. Ctrl-C ends it.")
            (threading.Event().wait if wait is None else wait)()
    except KeyboardInterrupt:
        again = command("report", run)
        typer.echo(printable(f"The page is gone; the run is left alone. To keep one: {again} --html FILE"), err=True)
    finally:
        server.server_close()
