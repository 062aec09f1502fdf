"""A hostile worker: it follows the protocol in its own mailbox, takes leases like a worker, and sends random invalid
messages, by a seed.

It attacks a master through any carrier: give it the worker's end of a mailbox, and call `step` for each message. If
it can access its mailbox's files (`folder`), it attacks those too.

    python -m tests.support.hostile_worker --name w3 --directory runs/mnist-1 --seed 7
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import final

from gridml.carriers.base import SUFFIX, WorkerMailbox
from gridml.carriers.registry import CARRIERS
from gridml.protocol import bundle
from gridml.protocol.messages import Reply, Verdict, reply_from
from gridml.protocol.push import Array
from tests.support.hostile_attacks import ATTACKS, Sent, Stance, honest
from tests.support.hostile_files import FILE_ATTACKS

HONEST = 0.15  # share of honest requests for work: without a lease few attacks get far
ON_FILES = 0.02  # share of attacks on files, which can be slow, with thousands of files


@final
class HostileWorker:
    """One worker that is hostile for as long as it has a mailbox.

    `attacks` names those that it chooses from, by default all. `sent` counts its messages by attack. `gone` is True
    once the master has closed its mailbox.
    """

    def __init__(
        self,
        worker: str,
        mailbox: WorkerMailbox,
        seed: int,
        folder: Path | None = None,
        attacks: Sequence[str] | None = None,
    ) -> None:
        self.stance = Stance(worker)
        self.sent: Counter[str] = Counter()
        self.gone = False
        self._mailbox = mailbox
        self._folder = folder
        self._rng = random.Random(f"{seed}/{worker}")
        names = [*ATTACKS, *FILE_ATTACKS] if attacks is None else attacks
        self._messages = [name for name in names if name in ATTACKS]
        self._files = [name for name in names if name in FILE_ATTACKS and folder is not None]
        self._number = 0
        self._removed = False  # True: it has removed its mailbox itself

    def step(self) -> str | None:
        """Read the answers, and attack once. Return the attack's name, None without a mailbox."""
        name = "nothing"
        try:
            self._receive()
            name = self._attack()
        except FileNotFoundError:
            self.gone = not self._make_mailbox()
        except OSError:
            self._make_mailbox()  # an earlier attack has removed it
        return None if self.gone else name

    def close(self) -> None:
        """Release its mailbox."""
        self._mailbox.close()

    def _make_mailbox(self) -> bool:
        """Restore its mailbox if it has removed that itself. Return True if it had."""
        if not self._removed or self._folder is None:
            return False
        self._removed = False
        with contextlib.suppress(OSError):
            self._folder.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._folder.mkdir()
        return True

    def _attack(self) -> str:
        rng = self._rng
        if self._files and (not self._messages or rng.random() < ON_FILES):
            name = rng.choice(self._files)
            assert self._folder is not None
            self._number += 1
            self.sent[name] += 1
            self._removed |= name == "no mailbox"
            FILE_ATTACKS[name](rng, self._folder, f"sync-{self._number:08d}-{rng.randbytes(32).hex()}{SUFFIX}")
            return name
        if rng.random() < HONEST or not self._messages:
            self._send("honest", Sent(honest(self.stance)))
            return "honest"
        name = rng.choice(self._messages)
        for sent in ATTACKS[name](rng, self.stance):
            self._send(name, sent)
        return name

    def _send(self, name: str, sent: Sent) -> None:
        self._number = max(1, self._number + 1 + sent.skip)
        self.sent[name] += 1
        self.stance.last = sent.payload
        self._mailbox.send(self._number, sent.payload)

    def _receive(self) -> None:
        payload = self._mailbox.receive(self._number)
        if payload is not None:
            with contextlib.suppress(ValueError):
                message, tensors = bundle.decode(payload)
                self._learn(reply_from(message), tensors)

    def _learn(self, reply: Reply, tensors: dict[str, Array]) -> None:
        """Update its state by an answer."""
        stance = self.stance
        stance.have = reply.version
        stance.replica |= tensors
        if reply.verdict is Verdict.MERGED and stance.lease is not None:
            stance.trained += stance.lease.stop - stance.upto
            stance.upto, stance.sequence = stance.lease.stop, stance.sequence + 1
            stance.lease = None
        elif reply.verdict is Verdict.REFUSED:
            stance.lease = None
        if reply.lease is not None:
            stance.lease, stance.upto, stance.sequence = reply.lease, reply.lease.start, 0
            with contextlib.suppress(OSError, ValueError, OverflowError):
                self._mailbox.beat(reply.lease.id, self._rng.choice((reply.lease.start, reply.lease.stop, 2**62, -1)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a hostile worker until its mailbox is closed, and print the counts of its messages. Replaces
    `gridml-worker`."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.hostile_worker",
        description="A hostile worker, to try a master or a carrier with. Every attack: "
        f"{', '.join([*ATTACKS, *FILE_ATTACKS])}.",
    )
    parser.add_argument("--name", required=True, help="its name in the run, which gives its mailbox")
    parser.add_argument("--directory", type=Path, help="the run directory, where it is shared with the master")
    parser.add_argument("--carrier", default="directory", help="what carries messages")
    parser.add_argument("--seed", type=int, default=0, help="the same seed sends the same")
    parser.add_argument("--every", type=float, default=0.01, help="seconds between two messages")
    parser.add_argument("--messages", type=int, default=sys.maxsize, help="number of messages")
    parser.add_argument("--attacks", nargs="*", help="their names, by default all")
    options = parser.parse_args(argv)
    mailbox = CARRIERS.find(options.carrier).connect(options.name, options.directory).open(options.name)
    folder = None if options.directory is None else options.directory / "mail" / options.name
    worker = HostileWorker(options.name, mailbox, options.seed, folder, options.attacks)
    try:
        while worker.sent.total() < options.messages and worker.step() is not None:
            time.sleep(options.every)
    finally:
        worker.close()
    print(dict(worker.sent))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
