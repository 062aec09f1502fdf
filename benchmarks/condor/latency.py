"""Measure how soon a run trains on a real HTCondor pool, and the round trip of a replica by each carrier.

A bare job (a shell script with the requests of a worker's job, with file transfer) and a run are submitted in turn. A
run is `gridml submit --foreground` of examples/mnist.py, with lines added that print the time: before the program's
imports, after them, and after the first batch.

    python -m benchmarks.condor.latency [REPEATS]

Pools whose requirements this machine cannot meet are reported and skipped.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser_of, sized
from benchmarks.table import Cell, write
from gridml.carriers import chirp
from gridml.carriers.directory import DirectoryMailboxes
from master.backends.condor import submit_description as condor_submit
from master.backends.condor.events import bindings
from master.backends.condor.options import CondorOptions
from master.sftp.server import MailServer
from master.store import rundir
from master.store.rundir import RunDirectory
from master.store.settings import Settings
from pools import pool
from pools.pool import Pool
from pools.release import NoCondor

EXAMPLE = Path(__file__).parents[2] / sized("examples/mnist.py", "benchmarks/programs/adult.py")
SIZES = (1, 5)
"""Megabytes of a replica."""
REMOTE = ("chirp", "sftp")
"""The carriers of jobs."""
LIMIT_S = 60.0  # timeout for each wait
POLL_S = 0.005
GOAL_S = 2.0
LEGS = ("asked", "submitted", "execute", "program", "imported", "first sync", "first batch")
"""The instants of a run in their order, after `command`; "asked" is when the master requests a job."""
NOTES = (
    "medians, in seconds, of bare jobs (submit → EXECUTE) and runs, taken in turn on one pool, after a warm-up of each",
    "to first batch: from the moment the master requests a job until its worker has trained a batch; over bare: "
    f"that, less a bare job's submit → EXECUTE (difference of medians, goal ≤ {GOAL_S:g})",
    "columns with → are its parts, in order: SUBMIT and EXECUTE seen in the log; program: a Python was found and "
    "has imported gridml; imported: the program's own imports (torch); first sync: at the master",
    "command: from the start of `gridml submit --foreground` to the first batch; it includes building the graph",
)
_BEFORE = "import time\nprint('at program', time.time(), flush=True)\n"
_AFTER = """
import functools
import signal


def first(f):
    @functools.wraps(f)
    def once(*arguments):
        f(*arguments)
        print("at batch", time.time(), flush=True)
        train.function = f
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the measurement is over, so the worker need not end gracefully

    return once


train.function = first(train.function)
print("at imported", time.time(), flush=True)
"""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=sized(10, 1))
    parser.add_argument(
        "--inside", type=Path, help="measure the pool of CONDOR_CONFIG (the benchmark calls itself with it)"
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument(
        "--address", default="127.0.0.1", help="the address at which that pool's jobs reach this machine"
    )
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.inside, options.runs, options.repeats, options.address)))
        return
    compare(options.repeats)


def compare(repeats: int) -> None:
    """Measure every available pool, one after the other."""
    rows: list[dict[str, Cell]] = []
    skipped = []
    with tempfile.TemporaryDirectory(prefix="latency-") as place:
        folder = Path(place)
        trips = trip_rows("directory", "one disk", by_directory(folder / "directory", repeats))
        pools: list[tuple[str, Callable[[], contextlib.AbstractContextManager[Pool]], int]] = [
            ("personal", lambda: pool.personal(folder / "personal"), repeats),
            ("firewalled", lambda: pool.firewalled(folder / "firewalled", workers=1, subnet=79), max(1, repeats // 2)),
        ]
        for name, up, runs in sized(pools, pools[:1]):
            try:
                with up() as raised:
                    inside = in_pool(raised, folder / f"in-{name}", runs, repeats)
            except NoCondor as reason:
                skipped.append(f"{name} pool skipped: {reason}")
                continue
            rows.append(row(name, inside))
            for carrier in REMOTE:
                trips += trip_rows(carrier, f"{name} pool", inside[carrier])
    if rows:
        write(
            "condor_latency",
            "From submission to the first batch trained (LeNet on MNIST), on real HTCondor pools",
            rows,
            [*NOTES, *skipped],
        )
    write(
        "condor_round_trips",
        "The round trip of a replica by each carrier",
        trips,
        [
            f"medians of {repeats}; directory: worker and master share a disk; chirp: from a job, through its shadow; "
            "sftp: from a job, to the master's own server",
            "put: a worker's message stored (durably by directory); get: the answer fetched and checked",
            "round trip: from before the put to after the get; the other side answers at once with as many bytes, and "
            "each side polls as often as in a run",
            *skipped,
        ],
    )


def in_pool(pool: Pool, folder: Path, runs: int, trips: int) -> dict[str, Any]:
    """Call `measure` in a process of its own, because HTCondor's bindings support one pool per process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.condor.latency",
        *sized([], ["--smallest"]),
        str(trips),
        "--inside",
        str(folder),
        "--runs",
        str(runs),
        "--address",
        f"10.{pool.subnet}.0.1" if pool.subnet else "127.0.0.1",
    ]
    environment = {**pool.environment(), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, text=True)
    inside: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return inside


def measure(folder: Path, runs: int, trips: int, address: str) -> dict[str, Any]:
    """Return the seconds of bare jobs and the instants of runs, taken in turn, and round trips by each carrier."""
    folder.mkdir(parents=True)
    program = folder / EXAMPLE.name
    program.write_text(_BEFORE + EXAMPLE.read_text() + _AFTER)
    settings = Settings(program=program, backend="condor", options=CondorOptions(request_memory="1GB", grace_s=2))
    bare, measured = [], []
    for i in range(runs + 1):
        bare.append(bare_job(settings, folder / f"bare{i}"))
        measured.append(one_run(program, folder / f"run{i}"))
    # The first of each is left out: it reads files from the disk and compiles bytecode that the others find cached.
    by_carrier = {name: by_job(name, settings, folder / name, trips, address) for name in REMOTE}
    return {"bare": bare[1:], "runs": measured[1:], **by_carrier}


def bare_job(settings: Settings, root: Path) -> float:
    """Return the seconds from the submission of a script to its EXECUTE event in the log."""
    commands, log = prepared(settings, root)
    (root / "bare.sh").write_text("#!/bin/sh\nexit 0\n")
    (root / "bare.sh").chmod(0o755)
    commands.update(executable=str(root / "bare.sh"), transfer_input_files="", arguments="", environment="")
    began = time.time()
    submit(commands)
    execute = log.wait("EXECUTE")
    log.wait("JOB_TERMINATED")
    return execute - began


def one_run(program: Path, root: Path) -> dict[str, float]:
    """Return the instants of a run until its first worker has trained a batch, in seconds since its command."""
    command = [sys.executable, "-m", "gridml", "submit", str(program), "--foreground"]
    command += ["--workers", "1", "--request-memory", "1GB", "--run-dir", str(root)]
    began = time.time()
    shown = root.with_suffix(".txt")
    with shown.open("w") as terminal:
        running = subprocess.Popen(command, stdout=terminal, stderr=terminal)
        try:
            wait((root / condor_submit.LOG).exists, f"no job was submitted, see {shown}")
            log = Log(root / condor_submit.LOG)
            instants = {"submitted": log.wait("SUBMIT"), "execute": log.wait("EXECUTE")}
            printed = root / "logs" / "w1.log"
            wait(lambda: printed.exists() and "at batch" in printed.read_text(), f"no batch was trained, see {printed}")
        except BaseException:
            print(shown.read_text(), file=sys.stderr)
            raise
        finally:
            running.terminate()
            try:
                running.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
    for line in printed.read_text().splitlines():
        if line.startswith("at "):
            _, name, at = line.split()
            instants["first batch" if name == "batch" else name] = float(at)
    with contextlib.closing(sqlite3.connect(f"file:{root / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        query = "SELECT submitted_s, first_sync_s FROM workers WHERE worker = 'w1'"
        instants["asked"], instants["first sync"] = ledger.execute(query).fetchone()
    return {leg: instants[leg] - began for leg in LEGS}


def row(name: str, inside: dict[str, Any]) -> dict[str, Cell]:
    """Return a line of the table: medians of a pool's bare jobs and runs."""
    runs: list[dict[str, float]] = inside["runs"]
    bare = statistics.median(inside["bare"])
    whole = statistics.median(run["first batch"] - run["asked"] for run in runs)
    parts = {
        f"→ {after}": round(statistics.median(run[after] - run[before] for run in runs), 3)
        for before, after in itertools.pairwise(LEGS)
    }
    return {
        "pool": name,
        "runs": len(runs),
        "bare s": round(bare, 3),
        "to first batch s": round(whole, 3),
        "over bare s": round(whole - bare, 3),
        **parts,
        "command s": round(statistics.median(run["first batch"] for run in runs), 3),
    }


def by_directory(root: Path, repeats: int) -> dict[str, list[float]]:
    """Measure round trips of a worker process that shares a disk with the master."""
    script = far_end(root)
    with echo(root):
        command = [sys.executable, str(script), "directory", str(repeats), str(root)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root)
    seconds: dict[str, list[float]] = json.loads(done.stdout)
    return seconds


def by_job(carrier: str, settings: Settings, root: Path, repeats: int, address: str) -> dict[str, list[float]]:
    """Measure round trips of a job of the pool, which reaches this machine at `address`."""
    commands, log = prepared(settings, root)
    script = far_end(root)
    launcher = root / "trips.sh"
    there = f'{chirp.CONFIG}="$_CONDOR_CHIRP_CONFIG"'  # as the launcher of workers has it
    launcher.write_text(f'#!/bin/sh\n{there} exec "{sys.executable}" {script.name} {carrier} {repeats}\n')
    launcher.chmod(0o755)
    sent = [rundir.CODE, script.name, *(["sftp/w1"] if carrier == "sftp" else [])]
    commands.update(
        executable=str(launcher),
        arguments="",
        transfer_input_files=", ".join(sent),
        output="trips.json",
        error="trips.err",
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(echo(root))
        if carrier == "sftp":
            server = MailServer(root, address)
            stack.callback(server.close)
            server.make("w1")
        submit(commands)
        log.wait("JOB_TERMINATED")
    try:
        seconds: dict[str, list[float]] = json.loads((root / "trips.json").read_text())
    except ValueError:
        raise RuntimeError(f"the job of the round trips failed: {(root / 'trips.err').read_text()}") from None
    return seconds


def far_end(root: Path) -> Path:
    """Write the worker's end into the run directory: the workers' code, and `round_trips` as a script."""
    root.mkdir(parents=True, exist_ok=True)
    rundir.write_code(root / rundir.CODE)
    script = root / "trips.py"
    call = "import sys\n\nround_trips(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])\n"
    script.write_text(f"SIZES = {SIZES}\n\n\n{inspect.getsource(round_trips)}\n\n{call}")
    return script


def round_trips(carrier: str, repeats: int, root: str = "") -> None:
    """Print the measured seconds as JSON. It runs as a script with the workers' code, so it has its own imports."""
    import json
    import os
    import sys
    import time
    from pathlib import Path

    sys.path.insert(0, "gridml.pyz")
    from gridml.carriers.registry import CARRIERS

    mailbox = CARRIERS.find(carrier).connect("w1", Path(root)).open("w1")
    measured: dict[str, list[float]] = {}
    number = 0
    for megabytes in SIZES:
        for repeat in range(repeats + 1):
            number += 1
            payload = os.urandom(megabytes * 1_000_000)
            began = time.perf_counter()
            mailbox.send(number, payload)
            put = time.perf_counter() - began
            step, longest = mailbox.poll_s
            while True:
                polled = time.perf_counter()
                reply = mailbox.receive(number)
                ended = time.perf_counter()
                if reply is not None:
                    break
                if ended - began > 30:  # s
                    sys.exit(f"no answer to {megabytes} MB within 30 s")
                time.sleep(step)
                step = min(longest, step * 1.5)
            if reply != payload:
                sys.exit(f"{megabytes} MB came back altered")
            if repeat:  # the first one includes making the connection
                for name, seconds in (("put", put), ("get", ended - polled), ("round trip", ended - began)):
                    measured.setdefault(f"{megabytes} {name}", []).append(seconds)
    print(json.dumps(measured))


@contextlib.contextmanager
def echo(root: Path) -> Iterator[None]:
    """Run a master's end that answers every message with its own payload and polls as often as an idle master."""
    end = DirectoryMailboxes(root)
    end.open("w1")
    over = threading.Event()

    def answer() -> None:
        while not over.wait(0.02):
            for message in end.collect():
                end.answer(message.worker, message.number, bytes(message.payload))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def trip_rows(carrier: str, place: str, measured: dict[str, list[float]]) -> list[dict[str, Cell]]:
    """Return a line of the table for each size: median milliseconds."""
    return [
        {
            "carrier": carrier,
            "through": place,
            "MB": size,
            **{
                f"{name} ms": round(1e3 * statistics.median(measured[f"{size} {name}"]), 1)
                for name in ("put", "get", "round trip")
            },
        }
        for size in SIZES
    ]


def prepared(settings: Settings, root: Path) -> tuple[dict[str, str], Log]:
    """Create the directory `root`. Return the submit commands of a worker's job in it, and the log of its events."""
    directory = RunDirectory(root)
    directory.logs.mkdir(parents=True)
    commands = {**condor_submit.description(settings, directory, {}), "output": "out", "error": "err"}
    for of_a_worker in ("transfer_output_remaps", "transfer_checkpoint_files", "checkpoint_exit_code"):
        del commands[of_a_worker]
    commands["transfer_output_files"] = '""'
    (root / condor_submit.LOG).touch()
    return commands, Log(root / condor_submit.LOG)


def submit(commands: dict[str, str]) -> None:
    condor = bindings()
    condor.Schedd().submit(condor.Submit(commands))


class Log:
    """An event log that is followed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = bindings().JobEventLog(str(path))
        self._seen: dict[str, float] = {}

    def wait(self, event: str) -> float:
        """Wait for the first event of this name. Return its time in seconds since 1970."""
        wait(lambda: self._has_seen(event), f"no {event} in {self._path}")
        return self._seen[event]

    def _has_seen(self, event: str) -> bool:
        for logged in self._log.events(stop_after=0):
            self._seen.setdefault(logged.type.name, time.time())
        return event in self._seen


def wait(is_done: Callable[[], bool], problem: str) -> None:
    """Poll until `is_done()`. Raises TimeoutError, with the `problem`."""
    deadline = time.monotonic() + LIMIT_S
    while not is_done():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{problem} (waited {LIMIT_S:g} s)")
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
