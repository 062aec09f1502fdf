"""Simulate a million kills, together with every other fault and hostile messages, in many small runs. The credits of
each run are checked.

    python -m benchmarks.campaign [KILLS [SEED]]

A run that is not exact ends the campaign and names its seed; `gridml simulate --campaign 1 --seed SEED` repeats it.
"""

from __future__ import annotations

import time

from benchmarks.arguments import numbers, sized
from benchmarks.table import write
from master.simulation.campaign import Played, campaign

EVERY_S = 60.0  # between progress lines


def main() -> None:
    kills, seed = numbers(__doc__, kills=sized(1_000_000, 1), seed=sized(0, 396))
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    shown_s = began_s

    def report(played: Played) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= EVERY_S:
            shown_s = time.monotonic()
            print(
                f"{played.kills:,} of {kills:,} kills, {played.hostile:,} hostile values in {played.runs} runs",
                flush=True,
            )

    sums = campaign(kills, seed, report=report)
    write(
        "campaign",
        f"{sums.kills:,} simulated kills and {sums.hostile:,} hostile values, every run exact",
        [
            {
                "seeds": f"{seed} to {seed + sums.runs - 1}",
                "runs": sums.runs,
                "kills": sums.kills,
                "with warning": sums.graceful,
                "masters": sums.masters,
                "messages": sums.sent,
                "lost": sums.lost,
                "hostile values": sums.hostile,
                "credits": sums.credits,
                "vertices": sums.credited,
                "CPU s": round(time.process_time() - began_cpu_s),
            }
        ],
        [
            "every run: 20 to 160 workers; lives of six distributions and of traces, storms, machines that never "
            "start, unequal speeds; messages and answers lost, delayed, duplicated, truncated, altered; masters killed "
            "at any commit point, also on startup",
            "checked after each death of a master and at the end: credited, free and leased ranges are a partition of "
            "every epoch, and every vertex of a finished one is credited once",
            "in three quarters of the runs up to two fifths of the machines are hostile: every other message and "
            "heartbeat of their workers is accompanied by up to four with values that no honest worker sends, in any "
            "field (wrong types, texts that cannot be encoded, numbers that overflow, lies), or by bytes that are no "
            "message",
            "masters: started masters; lost: messages and answers of which no copy arrived intact",
        ],
    )


if __name__ == "__main__":
    main()
