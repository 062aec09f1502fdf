"""The boot daemon of an instance: it enrols with the master, runs one worker, and ends when no work is left.

Status 0 says that the instance may be switched off: systemd then does so (`image/gridml-worker.service`), and an
instance that is switched off from inside is terminated. The next step is decided in `decisions.py`. No secret is
ever logged.

systemd is notified of the service's state (sd_notify(3)); where systemd did not start it, no notice is sent. The
metadata service is asked every few seconds whether EC2 is about to take this instance.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from ami import decisions, run_files
from ami import imds as instances
from ami.decisions import LeaveInstance, Words, WorkerEnd, WorkerExited
from ami.imds import ADDRESS, Identity, Imds, OwnInstance
from ami.supervise import supervise
from gridml.carriers.enrolment import Assignment, EnrolmentClient, Refused, is_key, new_key
from gridml.errors import GridmlError
from gridml.protocol.bundle import write_secret
from gridml.protocol.foreign import printable


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state such as "READY=1". Raises OSError."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
        # '@' stands for the zero byte that an abstract address begins with
        line.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


class EvictionWatch:
    """Says `Leave` once EC2 has given notice. A recommendation to move elsewhere is logged: it costs nothing to stay
    until the notice, which comes later or never."""

    def __init__(self, imds: Imds, words: Words, log: Callable[[str], None]) -> None:
        self._imds = imds
        self._words = words
        self._log = log
        self._rebalance: str | None = None
        self._trouble = ""

    def look(self) -> bool:
        """Ask once; return whether EC2 takes this instance. Raises OSError."""
        interruption = self._imds.interruption()
        if interruption is not None:
            self._words.say(
                LeaveInstance(f"spot interruption: {interruption.action} at {interruption.time}", evicted=True)
            )
            return True
        rebalance = self._imds.rebalance()
        if rebalance != self._rebalance:
            self._rebalance = rebalance
            self._log(f"EC2 recommends to move elsewhere, since {rebalance}")
        return False

    def begin(self, every_s: float) -> None:
        """Ask every so many seconds from now on, on a thread that ends with the process, or with the notice."""
        threading.Thread(target=self._go_on, args=(every_s,), daemon=True, name="watch").start()

    def _go_on(self, every_s: float) -> None:
        never = threading.Event()
        while not self._looked():
            never.wait(every_s)

    def _looked(self) -> bool:
        try:
            taken, trouble = self.look(), ""
        except OSError as error:
            taken, trouble = False, str(error)
        if trouble != self._trouble:
            self._log(f"the metadata service: {trouble or 'answers again'}")
            self._trouble = trouble
        return taken


GRACE_S = 75.0  # from SIGTERM until the worker is killed; systemd kills all after 90
GOODBYE_S = 10.0  # how long the master is told goodbye, when it does not answer
TAKEN_S = 600.0  # after its notice EC2 takes an instance within minutes; if it does not, the instance ends itself


class Master(Protocol):
    """What the daemon asks of the master: `gridml.carriers.enrolment.EnrolmentClient`."""

    def enrol(self, token: str, document: str, signature: str) -> Assignment: ...

    def goodbye(self, job: str, exit_status: int, why: str, evicted: bool, log: str) -> None: ...


@dataclass(frozen=True)
class DaemonServices:
    """All that the daemon does outside itself. `identity` and `look` ask the metadata service, the latter whether EC2
    takes this instance; `prepare` fetches what an assignment takes, `run` runs its worker to the end."""

    master: Master
    identity: Callable[[], Identity]
    look: Callable[[], bool]
    prepare: Callable[[Assignment], None]
    run: Callable[[Assignment], WorkerExited]
    words: Words
    log: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random


class Over(Exception):
    """There is nothing more to do here. `status` is what the master is told of the worker; where it is gone
    (`unheard`), it is told nothing."""

    def __init__(self, why: str, status: int = 0, *, unheard: bool = False) -> None:
        super().__init__(why)
        self.why, self.status, self.unheard = why, status, unheard


class Daemon:
    """One instance's life. Seconds are those of the surroundings' clock."""

    def __init__(self, instance: OwnInstance, around: DaemonServices) -> None:
        self._instance = instance
        self._around = around
        self._heard_s = around.clock()
        self._job: str | None = None
        self._short_lives = 0
        self._output = ""  # of the last worker

    def live(self) -> None:
        """Work until there is nothing more to do. Returns when the instance may be switched off."""
        try:
            while True:
                self._work(self._ready())
        except Over as over:
            self._around.log(f"leaving: {over.why}")
            self._say_goodbye(over)
        leave = self._around.words.leave
        if leave is not None and leave.evicted:
            self._await_end()

    def _ready(self) -> Assignment:
        """Enrol, and have what the worker takes. Raises Over when the instance is to leave, or nobody is there."""
        around, attempt = self._around, 0
        while True:
            self._heed()
            attempt += 1
            pause_s = decisions.pause_s(attempt, around.draw())
            try:
                if around.look():
                    continue
                identity = around.identity()
                assignment = around.master.enrol(self._instance.fleet_token, identity.document, identity.signature)
                self._heard_s, self._job = around.clock(), assignment.job
                around.log(f"enrolled as {assignment.job} with the master at {self._instance.master}")
                around.prepare(assignment)
                return assignment
            except Refused as refused:
                self._heard_s = around.clock()
                if refused.retry_s is None:
                    raise Over(str(refused), unheard=True) from None
                pause_s = max(pause_s, refused.retry_s)
                around.log(f"{refused}; asking again in {pause_s:.0f} s")
            except GridmlError as error:
                raise Over(str(error), error.exit_status) from None
            except OSError as error:
                around.log(f"not enrolled yet: {error}; asking again in {pause_s:.0f} s")
            silent_s = around.clock() - self._heard_s
            if why := decisions.orphaned(silent_s, self._instance.orphan_s):
                raise Over(why, unheard=True)
            self._pause(min(pause_s, self._instance.orphan_s - silent_s))

    def _work(self, assignment: Assignment) -> None:
        """Run a worker. Raises Over unless another is to follow it."""
        around, began_s = self._around, self._around.clock()
        self._heed()
        try:
            ended = around.run(assignment)
        except OSError as error:
            raise Over(f"the worker cannot be started: {error}", GridmlError.exit_status) from None
        ended_s, self._output = around.clock(), ended.output
        leave = self._leave()
        stop_reason = None if leave is None else leave.why
        end = WorkerEnd(ended.status, ended_s - began_s, ended.last_words, stop_reason, self._short_lives)
        self._heard_s = decisions.last_contact_s(end, ended_s, assignment.arguments, self._heard_s)
        self._short_lives = self._short_lives + 1 if end.lived_s < decisions.SHORT_RUN_S else 0
        another, why = decisions.is_followed(end)
        if not another:
            raise Over(why, ended.status)
        around.log(f"the worker is started again: {why}")
        self._pause(decisions.pause_s(self._short_lives + 1, around.draw()))

    def _leave(self) -> LeaveInstance | None:
        """What this instance was told to leave for. Where that was a signal, EC2 may be behind it."""
        leave = self._around.words.leave
        if leave is not None and not leave.evicted:
            try:
                self._around.look()
            except OSError as error:
                self._around.log(f"the metadata service: {error}")
        return self._around.words.leave

    def _say_goodbye(self, over: Over) -> None:
        """Tell the master how the worker ended, if there was one; not for long."""
        around, leave = self._around, self._around.words.leave
        if self._job is None or over.unheard:
            return
        give_up_s, attempt = around.clock() + GOODBYE_S, 0
        while True:
            attempt += 1
            try:
                evicted = leave is not None and leave.evicted
                around.master.goodbye(self._job, over.status, printable(over.why), evicted, self._output)
                return
            except (Refused, PermissionError) as error:
                around.log(f"no goodbye: {error}")
                return
            except OSError as error:
                around.log(f"goodbye, attempt {attempt}: {error}")
            pause_s = decisions.pause_s(attempt, around.draw())
            if around.clock() + pause_s > give_up_s:
                return
            around.words.hear(pause_s)

    def _await_end(self) -> None:
        """Let EC2 take the instance: one that ends itself pays for its hour."""
        around, until_s = self._around, self._around.clock() + TAKEN_S
        around.log("EC2 takes this instance, which waits for it")
        while not around.words.going_down and (left_s := until_s - around.clock()) > 0:
            around.words.hear(left_s)

    def _heed(self) -> None:
        leave = self._leave()
        if leave is not None:
            raise Over(leave.why)

    def _pause(self, seconds: float) -> None:
        self._around.words.pause(seconds)
        self._heed()


def main(argv: list[str] | None = None) -> int:
    """The console script of the unit: exit status 0 when the instance may be switched off, an error's own otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m ami.daemon",
        description="The boot daemon of an instance. systemd starts it; there is no need to call it by hand.",
        epilog="example: python -m ami.daemon --config /etc/gridml/instance.json",
    )
    parser.add_argument("--config", required=True, type=Path, help="what the user data wrote")
    parser.add_argument("--folder", default=Path("."), type=Path, help="where the key and the worker's folder are")
    parser.add_argument("--imds", default=ADDRESS, help="where the metadata service answers")
    options = parser.parse_args(argv)
    try:
        instance = instances.read(options.config)
        around = _surroundings(instance, options.folder.resolve(), options.imds)
    except GridmlError as error:
        _log(str(error))
        return error.exit_status
    notify("READY=1\nSTATUS=enrolling")
    Daemon(instance, around).live()
    return 0


def _surroundings(instance: OwnInstance, folder: Path, imds_address: str) -> DaemonServices:
    """The real ones: signals, a watch on its thread, the master over SSH, a worker as a process."""
    words, imds = Words(), Imds(imds_address)

    def on_signal(number: int, frame: FrameType | None) -> None:
        words.say(LeaveInstance("the instance is shutting down"))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    work = folder / "work"
    work.mkdir(mode=0o700, exist_ok=True)
    key = _own_key(folder / "key")

    def run(assignment: Assignment) -> WorkerExited:
        command, environment = run_files.command(assignment), run_files.environment(assignment, work)
        notify(f"STATUS=working as {assignment.job}")
        return supervise(command, work, environment, words, GRACE_S, _log)

    # Two clients: what the watch's thread asks, and what the loop asks, are not to wait for each other.
    EvictionWatch(Imds(imds_address), words, _log).begin(instance.watch_s)
    return DaemonServices(
        master=EnrolmentClient(instance.master, key),
        identity=imds.identity,
        look=EvictionWatch(imds, words, _log).look,
        prepare=lambda assignment: run_files.prepare(assignment, instance.master, key, work),
        run=run,
        words=words,
        log=_log,
    )


def _own_key(path: Path) -> str:
    """The instance's private key: made at its first boot, and the same after a restart. One that a crash left damaged
    is made anew: if it has enrolled, the instance is told so and ends, and need not ask in vain. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        kept = path.read_text(errors="replace")
        if is_key(kept):
            return kept
    made = new_key()
    write_secret(path, made)
    return made


def _log(text: str) -> None:
    sys.stdout.write(f"{text}\n")  # in one piece: threads log, too
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
