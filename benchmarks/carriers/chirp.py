"""The Chirp case of `benchmarks.carriers`. The clients are jobs of a private HTCondor pool on this machine, with a slot
and a job for each. They are served by the starter and the shadow of each job.

A job reaches its mailbox like a worker's job. It receives commands and reports costs over a local socket, which a job
of a remote pool would not have.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path

from benchmarks.carriers.clients import NotMeasured, Served, Work, client
from gridml.carriers.chirp import proxy_of_job
from gridml.carriers.file_link import FileMailbox
from master.backends.condor.submit_description import word
from pools.pool import Pool, personal, pid

PROGRAMS = frozenset({"condor_starter", "condor_shadow"})
STARTS_S = 180.0  # timeout for the start of all jobs
ROOMY = "MEMORY = 1000000\n"  # MB: HTCondor must not refuse a case; the benchmark checks the memory itself
SUBMIT = """
universe = vanilla
executable = {python}
transfer_executable = False
arguments = -m benchmarks.carriers.chirp $(worker) {work.size} {work.times} {work.sha256} {meeting}
environment = "PYTHONPATH={code} OMP_NUM_THREADS=1"
initialdir = {root}
want_io_proxy = True
should_transfer_files = YES
request_cpus = 1
request_memory = 1000
request_disk = 1MB
log = {own}/log
error = {own}/$(worker).err
stream_error = True
queue worker in ({workers})
"""


@contextlib.contextmanager
def chirp(root: Path, workers: Sequence[str]) -> Iterator[Served]:
    """Serve the clients as jobs of a private pool. Raises NoCondor if HTCondor is not installed."""
    own = root.parent / "own"
    own.mkdir()
    with personal(root.parent / "pool", cpus=len(workers), more=ROOMY) as pool:
        jobs = functools.partial(_jobs, pool, root, own, workers)
        yield Served(root, jobs, (pid(pool.submit) or 0,), PROGRAMS)


@contextlib.contextmanager
def _jobs(pool: Pool, root: Path, own: Path, workers: Sequence[str], work: Work) -> Iterator[Sequence[Connection]]:
    description, meeting = own / "submit", own / "socket"
    places = {"meeting": meeting, "root": root, "own": own, "code": word(str(Path(__file__).parents[2]))}
    description.write_text(SUBMIT.format(python=sys.executable, work=work, workers=" ".join(workers), **places))
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(meeting))
        listening.listen(len(workers))
        submitted = pool.tool("condor_submit", str(description))
        if submitted.returncode:
            raise NotMeasured(f"condor_submit failed: {submitted.stderr}")
        stack.callback(_print_errors, own)
        ends, deadline = list[Connection](), time.monotonic() + STARTS_S
        for _ in workers:
            listening.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                accepted, _ = listening.accept()
            except TimeoutError:
                raise NotMeasured(f"{len(ends)} of {len(workers)} jobs ran within {STARTS_S:g} s") from None
            accepted.setblocking(True)
            ends.append(stack.enter_context(Connection(accepted.detach())))
        yield ends


def _print_errors(own: Path) -> None:
    """Print the jobs' standard error."""
    for said in sorted(own.glob("*.err")):
        print(said.read_text(), end="", file=sys.stderr)


def main(worker: str, size: str, times: str, sha256: str, meeting: str) -> None:
    """Run a client: the entry point of a job."""
    box = FileMailbox(worker, lambda: proxy_of_job(Path(os.environ["_CONDOR_CHIRP_CONFIG"])))
    with Client(meeting, "AF_UNIX") as channel:
        client({worker: box}, Work(int(size), int(times), sha256), channel)


if __name__ == "__main__":
    main(*sys.argv[1:])
