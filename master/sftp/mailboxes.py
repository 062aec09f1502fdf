"""The master's mailboxes where messages travel by SFTP: folders of the run directory, behind the master's own server.

Every job has a key for as long as one of its attempts has a mailbox.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from gridml.carriers.directory import DirectoryMailboxes
from gridml.carriers.forwarding import Forwarding
from gridml.protocol.attempts import job_of
from master.sftp.quota import Quota
from master.sftp.server import MailServer


class SftpMailboxes(Forwarding):
    """Serves the run directory `root` at `address` (see `MailServer`, also for what is raised) until it is stopped."""

    def __init__(self, root: Path, address: str | None = None) -> None:
        super().__init__(DirectoryMailboxes(root))
        self._server = MailServer(root, address)
        self._open: defaultdict[str, set[str]] = defaultdict(set)  # by job, its attempts that have a mailbox

    def open(self, worker: str) -> None:
        self._server.make(job_of(worker))
        self._open[job_of(worker)].add(worker)
        super().open(worker)

    def limit(self, longest: int) -> None:
        super().limit(longest)
        self._server.quota = Quota(longest)

    def clear(self) -> None:
        self._open.clear()
        self._server.keep(())
        super().clear()

    def close(self, worker: str) -> None:
        super().close(worker)
        attempts = self._open[job_of(worker)]
        attempts.discard(worker)
        if not attempts:
            del self._open[job_of(worker)]
            self._server.remove(job_of(worker))

    def stop(self) -> None:
        self._server.close()
