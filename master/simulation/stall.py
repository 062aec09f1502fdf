"""Simulations that can never finish: what shows before they begin, and what shows only as they go on."""

from __future__ import annotations

from dataclasses import dataclass

from chunk_model.costs import Costs
from chunk_model.lifetime import Lifetime
from gridml.errors import RunError, UsageError
from master.decisions.staffing import STUCK

SELDOM = 1e-6  # when fewer lives than this can bring home a vertex, none ever will
LIVES, LIVES_OF_EACH = 5_000, 50  # that began without a credit, in all or on each machine, whichever is more
MASTERS = 1_000  # that took over without a credit
TURNS = 400_000  # of the master without a credit: about a minute of real time
SOME_TURNS = 1_000  # below, simulated time says nothing: the next machine may only come in a month
LONGEST_S = 1e12  # of simulated time, in which a clock of 64 bits still resolves a millisecond
CHANGE = (
    "Give machines that live longer (--lifetime, --trace), a shorter boot, start or push (--cost), pushes or smaller "
    "chunks (--chunk, --push-every), or a longer --silence."
)


@dataclass(frozen=True)
class Since:
    """What has happened since a vertex was credited last, or since the beginning."""

    seconds: float = 0.0
    turns: int = 0
    lives: int = 0
    masters: int = 0


def check_lives(lifetime: Lifetime, costs: Costs, vertices: int, fastest: float, grace_s: float) -> None:
    """Raise UsageError when practically no life lasts until it can have brought home its first `vertices` on a machine
    `fastest` times as fast as the costs say; a machine that is taken may work on for `grace_s`."""
    work_s = vertices * (costs.copy_s + costs.exec_s / fastest)
    needed_s = costs.boot_s + costs.start_s + work_s + (costs.push_s or 0.0)
    share = lifetime.survival(max(0.0, needed_s - grace_s))
    if share >= SELDOM:
        return
    raise UsageError(
        f"no chunk could ever finish: boot {costs.boot_s:,.6g} s, start {costs.start_s:,.6g} s, {work_s:,.6g} s of "
        f"work and push {costs.push_s or 0.0:,.6g} s come before the first credit, but by {lifetime} (mean "
        f"{lifetime.mean():,.6g} s) a share of {share:.2g} of the machines lives that long. {CHANGE}"
    )


def check_silence(
    costs: Costs, slowest: float, silent_s: float, travel_s: float = 0.0, *, batch: int = 1, chunk: int = 1
) -> None:
    """Raise UsageError when what a worker does at once takes so long that it would be given up, and whoever got its
    leases in turn: its first message may take a silence, and whatever it trains nothing in `STUCK` of them, for its
    heartbeat goes on. `slowest` is the speed of the slowest machines. Messages take `travel_s`, which counts once: one
    that waits for an answer sends its message again and again."""
    first_s = costs.boot_s + travel_s
    if first_s >= silent_s:
        raise UsageError(
            f"--silence is {silent_s:,.6g} s, but it takes {first_s:,.6g} s for the first message to come (boot, "
            f"--travel), before which nothing is heard of a worker; expected --silence to be longer than that, such as "
            f"--silence {2 * first_s:.6g}."
        )
    start_s = costs.start_s + chunk * costs.copy_s
    for what, takes_s in (
        ("to start a chunk" + (f" of {chunk:,} vertices (t_s, t_c)" if chunk > 1 else " (t_s)"), start_s),
        (f"to train a batch of {batch:,} vertices (t_x)" if batch > 1 else "to train a vertex (t_x)",
         batch * costs.exec_s / slowest),
        ("to end a chunk (t_e)", costs.end_s),
        ("for a push", costs.push_s or 0.0),
    ):  # fmt: skip
        if takes_s >= STUCK * silent_s:
            raise UsageError(
                f"--silence is {silent_s:,.6g} s, but it takes {takes_s:,.6g} s {what}, and a worker that trains "
                f"nothing for {STUCK * silent_s:,.6g} s, {STUCK} times --silence, is taken to be stuck; expected "
                f"--silence to be longer, such as --silence {2 * takes_s / STUCK:.6g}."
            )


def check_stall(since: Since, machines: int, alone_s: float) -> None:
    """Raise RunError when a run will not go on: `machines` are there at once, and `alone_s` is more than one of them
    would take for everything. Each life that ends in vain may be followed by another one, which has that time anew."""
    most = max(LIVES, LIVES_OF_EACH * machines)
    if since.lives >= most:
        why = f"{since.lives:,} lives began in vain"
    elif since.masters >= MASTERS:
        why = f"{since.masters:,} masters took over in vain; let them be killed less often (--crash-every)"
    elif since.turns >= TURNS or (since.turns >= SOME_TURNS and since.seconds > alone_s * (1 + since.lives / machines)):
        why = f"the master looked for messages {since.turns:,} times, and {since.lives:,} lives began"
    else:
        return
    raise RunError(
        f"the simulated run does not go on: no vertex was credited for {since.seconds:,.0f} s, {why}. {CHANGE}"
    )
