"""The boot daemon of an instance: it enrols with the master, runs one worker at a time, and ends when no work is left.

If the daemon exits with status 0, systemd shuts the instance down (`image/gridml-worker.service`), and EC2 terminates
an instance that shuts itself down. `decisions.py` decides the next step. Secrets are never logged.

If systemd started the daemon, the daemon notifies systemd of its state (sd_notify(3)). Every few seconds the daemon
polls the metadata service, through which EC2 gives notice that it reclaims the instance.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from ami import decisions, run_files
from ami import imds as instances
from ami.decisions import EventQueue, LeaveInstance, WorkerEnd, WorkerExited
from ami.imds import ADDRESS, Identity, Imds, OwnInstance
from gridml.carriers.enrolment import Assignment, EnrolmentClient, Refused, is_key, new_key
from gridml.errors import GridmlError
from gridml.protocol.bundle import write_secret
from gridml.protocol.foreign import printable

_MAX_LINE_CHARS = 2_000
_MAX_LINES = 200  # lines of output in the goodbye message
_REST_S = 2.0  # time after the worker's exit to read the rest of its output


def supervise(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    events: EventQueue,
    grace_s: float,
    log: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> WorkerExited:
    """Run a worker to its end. On a request to leave, the worker gets SIGTERM at once and SIGKILL after `grace_s`
    seconds; further requests do not extend this grace. The worker's output is passed to `log` line by line. Raises
    OSError if the worker cannot be started."""
    process = subprocess.Popen(
        [*command],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    kept: deque[str] = deque(maxlen=_MAX_LINES)

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout:
            while line := process.stdout.readline(_MAX_LINE_CHARS):
                if line := printable(line.rstrip(), _MAX_LINE_CHARS):
                    kept.append(line)
                    log(line)

    def wait() -> None:
        status = process.wait()
        listener.join(_REST_S)  # a child of the worker may keep the pipe open forever
        events.put(WorkerExited(status, "\n".join(kept)))

    listener = threading.Thread(target=listen, daemon=True, name="worker's output")
    listener.start()
    threading.Thread(target=wait, daemon=True, name="worker's end").start()
    leaving = False
    kill_s: float | None = None  # time of SIGKILL
    while not isinstance(event := events.get(None if kill_s is None else max(0.0, kill_s - clock())), WorkerExited):
        if kill_s is not None and clock() >= kill_s:
            log(f"the worker did not end within {grace_s:.0f} s of SIGTERM: it is killed")
            process.kill()
            kill_s = None  # the next event is the worker's exit
        elif not leaving:
            leaving, kill_s = True, clock() + grace_s
            process.terminate()
    return event


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state such as "READY=1" to systemd. Raises OSError."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
        # '@' stands for the leading zero byte of an abstract address
        line.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


class EvictionWatch:
    """Queues `LeaveInstance` when EC2 gives notice that it reclaims the instance. A rebalance recommendation is only
    logged, because the instance can work until the notice, which comes later or never."""

    def __init__(self, imds: Imds, events: EventQueue, log: Callable[[str], None]) -> None:
        self._imds = imds
        self._events = events
        self._log = log
        self._rebalance: str | None = None
        self._trouble = ""

    def check(self) -> bool:
        """Poll once; return whether EC2 reclaims this instance. Raises OSError."""
        interruption = self._imds.interruption()
        if interruption is not None:
            self._events.put(
                LeaveInstance(f"spot interruption: {interruption.action} at {interruption.time}", evicted=True)
            )
            return True
        rebalance = self._imds.rebalance()
        if rebalance != self._rebalance:
            self._rebalance = rebalance
            self._log(f"EC2 recommends to move elsewhere, since {rebalance}")
        return False

    def begin(self, every_s: float) -> None:
        """Poll every `every_s` seconds on a daemon thread, until the notice."""
        threading.Thread(target=self._go_on, args=(every_s,), daemon=True, name="watch").start()

    def _go_on(self, every_s: float) -> None:
        never = threading.Event()
        while not self._try_check():
            never.wait(every_s)

    def _try_check(self) -> bool:
        try:
            taken, trouble = self.check(), ""
        except OSError as error:
            taken, trouble = False, str(error)
        if trouble != self._trouble:
            self._log(f"the metadata service: {trouble or 'answers again'}")
            self._trouble = trouble
        return taken


GRACE_S = 75.0  # from SIGTERM until the worker is killed; systemd kills all processes after 90 s
GOODBYE_TIMEOUT_S = 10.0  # for all attempts to send the goodbye message
MAX_EVICTION_WAIT_S = 600.0  # maximum wait until EC2 takes the instance; after this, the instance shuts itself down


class Master(Protocol):
    """The master as the daemon uses it; implemented by `gridml.carriers.enrolment.EnrolmentClient`."""

    def enrol(self, token: str, document: str, signature: str) -> Assignment: ...

    def goodbye(self, job: str, exit_status: int, why: str, evicted: bool, log: str) -> None: ...


@dataclass(frozen=True)
class DaemonServices:
    """The dependencies of the daemon, which tests replace."""

    master: Master
    identity: Callable[[], Identity]  # from the metadata service
    check: Callable[[], bool]  # asks the metadata service whether EC2 reclaims this instance
    prepare: Callable[[Assignment], None]  # fetches the files of an assignment
    run: Callable[[Assignment], WorkerExited]  # runs the worker of an assignment to its end
    events: EventQueue
    log: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random


class DaemonExit(Exception):
    """No work is left for this instance. `status` is the worker's exit status for the goodbye message. If the master is
    gone or has refused the instance (`master_gone`), no goodbye message is sent."""

    def __init__(self, why: str, status: int = 0, *, master_gone: bool = False) -> None:
        super().__init__(why)
        self.why, self.status, self.master_gone = why, status, master_gone


class Daemon:
    """The boot daemon of one instance. All times are seconds of `DaemonServices.clock`."""

    def __init__(self, instance: OwnInstance, services: DaemonServices) -> None:
        self._instance = instance
        self._services = services
        self._last_contact_s = services.clock()
        self._job: str | None = None  # None until enrolled
        self._short_runs = 0  # number of workers in a row, the last one included, that ended within SHORT_RUN_S
        self._output = ""  # output of the last worker

    def live(self) -> None:
        """Run workers until no work is left. Returns when the instance can be shut down."""
        try:
            while True:
                self._work(self._ready())
        except DaemonExit as ending:
            self._services.log(f"leaving: {ending.why}")
            self._say_goodbye(ending)
        leave = self._services.events.leave
        if leave is not None and leave.evicted:
            self._await_end()

    def _ready(self) -> Assignment:
        """Enrol, and fetch the files of the worker. Raises DaemonExit if asked to leave or if the master is gone."""
        services, attempt = self._services, 0
        while True:
            self._check_leave()
            attempt += 1
            pause_s = decisions.pause_s(attempt, services.draw())
            try:
                if services.check():
                    continue
                identity = services.identity()
                assignment = services.master.enrol(self._instance.fleet_token, identity.document, identity.signature)
                self._last_contact_s, self._job = services.clock(), assignment.job
                services.log(f"enrolled as {assignment.job} with the master at {self._instance.master}")
                services.prepare(assignment)
                return assignment
            except Refused as refused:
                self._last_contact_s = services.clock()
                if refused.retry_s is None:
                    raise DaemonExit(str(refused), master_gone=True) from None
                pause_s = max(pause_s, refused.retry_s)
                services.log(f"{refused}; asking again in {pause_s:.0f} s")
            except GridmlError as error:
                raise DaemonExit(str(error), error.exit_status) from None
            except OSError as error:
                services.log(f"not enrolled yet: {error}; asking again in {pause_s:.0f} s")
            silent_s = services.clock() - self._last_contact_s
            if why := decisions.orphan_reason(silent_s, self._instance.orphan_s):
                raise DaemonExit(why, master_gone=True)
            self._pause(min(pause_s, self._instance.orphan_s - silent_s))

    def _work(self, assignment: Assignment) -> None:
        """Run a worker to its end. Raises DaemonExit unless another worker follows."""
        services, began_s = self._services, self._services.clock()
        self._check_leave()
        try:
            ended = services.run(assignment)
        except OSError as error:
            raise DaemonExit(f"the worker cannot be started: {error}", GridmlError.exit_status) from None
        ended_s, self._output = services.clock(), ended.output
        leave = self._leave()
        stop_reason = None if leave is None else leave.why
        end = WorkerEnd(ended.status, ended_s - began_s, ended.last_line, stop_reason, self._short_runs)
        self._last_contact_s = decisions.last_contact_s(end, ended_s, assignment.arguments, self._last_contact_s)
        self._short_runs = self._short_runs + 1 if end.lived_s < decisions.SHORT_RUN_S else 0
        another, why = decisions.is_followed(end)
        if not another:
            raise DaemonExit(why, ended.status)
        services.log(f"the worker is started again: {why}")
        self._pause(decisions.pause_s(self._short_runs + 1, services.draw()))

    def _leave(self) -> LeaveInstance | None:
        """Return the request to leave, if any. After a signal, check whether a notice of EC2 caused it."""
        leave = self._services.events.leave
        if leave is not None and not leave.evicted:
            try:
                self._services.check()
            except OSError as error:
                self._services.log(f"the metadata service: {error}")
        return self._services.events.leave

    def _say_goodbye(self, ending: DaemonExit) -> None:
        """Report the worker's end to the master, with retries for `GOODBYE_TIMEOUT_S`. Do nothing if this instance has
        never enrolled or if the master is gone."""
        services, leave = self._services, self._services.events.leave
        if self._job is None or ending.master_gone:
            return
        give_up_s, attempt = services.clock() + GOODBYE_TIMEOUT_S, 0
        while True:
            attempt += 1
            try:
                evicted = leave is not None and leave.evicted
                services.master.goodbye(self._job, ending.status, printable(ending.why), evicted, self._output)
                return
            except (Refused, PermissionError) as error:
                services.log(f"no goodbye: {error}")
                return
            except OSError as error:
                services.log(f"goodbye, attempt {attempt}: {error}")
            pause_s = decisions.pause_s(attempt, services.draw())
            if services.clock() + pause_s > give_up_s:
                return
            services.events.get(pause_s)

    def _await_end(self) -> None:
        """Wait until EC2 reclaims the instance, because an instance that shuts itself down first is charged for its
        hour."""
        services, until_s = self._services, self._services.clock() + MAX_EVICTION_WAIT_S
        services.log("waiting until EC2 reclaims this instance")
        while not services.events.going_down and (left_s := until_s - services.clock()) > 0:
            services.events.get(left_s)

    def _check_leave(self) -> None:
        leave = self._leave()
        if leave is not None:
            raise DaemonExit(leave.why)

    def _pause(self, seconds: float) -> None:
        self._services.events.pause(seconds)
        self._check_leave()


def main(argv: list[str] | None = None) -> int:
    """Run the daemon. Return 0 when the instance can be shut down, otherwise the exit status of the error."""
    parser = argparse.ArgumentParser(
        prog="python -m ami.daemon",
        description="The boot daemon of an instance. systemd starts it; there is no need to call it by hand.",
        epilog="example: python -m ami.daemon --config /etc/gridml/instance.json",
    )
    parser.add_argument("--config", required=True, type=Path, help="file written by the user data")
    parser.add_argument("--folder", default=Path("."), type=Path, help="folder of the key and the worker's folder")
    parser.add_argument("--imds", default=ADDRESS, help="address of the metadata service")
    options = parser.parse_args(argv)
    try:
        instance = instances.read(options.config)
        services = _services(instance, options.folder.resolve(), options.imds)
    except GridmlError as error:
        _log(str(error))
        return error.exit_status
    notify("READY=1\nSTATUS=enrolling")
    Daemon(instance, services).live()
    return 0


def _services(instance: OwnInstance, folder: Path, imds_address: str) -> DaemonServices:
    """Return the real services: signals, the eviction watch, the master over SSH, the worker process."""
    events, imds = EventQueue(), Imds(imds_address)

    def on_signal(number: int, frame: FrameType | None) -> None:
        events.put(LeaveInstance("the instance is shutting down"))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    work = folder / "work"
    work.mkdir(mode=0o700, exist_ok=True)
    key = _own_key(folder / "key")

    def run(assignment: Assignment) -> WorkerExited:
        command, environment = run_files.command(assignment), run_files.environment(assignment, work)
        notify(f"STATUS=working as {assignment.job}")
        return supervise(command, work, environment, events, GRACE_S, _log)

    # Two clients of the metadata service, so that the watch's thread and the main loop do not block each other.
    EvictionWatch(Imds(imds_address), events, _log).begin(instance.watch_s)
    return DaemonServices(
        master=EnrolmentClient(instance.master, key),
        identity=imds.identity,
        check=EvictionWatch(imds, events, _log).check,
        prepare=lambda assignment: run_files.prepare(assignment, instance.master, key, work),
        run=run,
        events=events,
        log=_log,
    )


def _own_key(path: Path) -> str:
    """Return the instance's private key, which is made at the first boot and kept across restarts. Raises OSError.

    A key that a crash has damaged is replaced. If the instance has enrolled with the old key, the master refuses the
    new key for good, and the instance ends instead of retrying.
    """
    with contextlib.suppress(FileNotFoundError):
        kept = path.read_text(errors="replace")
        if is_key(kept):
            return kept
    made = new_key()
    write_secret(path, made)
    return made


def _log(text: str) -> None:
    sys.stdout.write(f"{text}\n")  # one write, because several threads log
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
