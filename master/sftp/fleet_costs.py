"""What the costs of a run's instances rest on: how long each stayed, by the roster, and prices, kept beside it since a
provider forgets its history. `master.decisions.spending` makes dollars of both.

`prices.json` in the folder `fleet` of the run directory is {"TYPE/ZONE": [[seconds since 1970, dollars an hour], ...]},
each list in order of time. A back end writes it, whole or not at all; reports and later masters read it.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

from gridml.errors import LedgerError
from gridml.protocol.bundle import write_atomic
from master.decisions.spending import Prices, Stay
from master.sftp.roster import FOLDER, Instance, Roster

_FILE = "prices.json"


def stays(roster: Roster) -> list[tuple[Instance, Stay]]:
    """Return all instances that were ever launched, in the order of their ids, and how long each stayed."""
    instances = (roster.instance(id) for id in roster.ids())
    return [(instance, _stay(instance, roster)) for instance in instances if instance is not None]


def _stay(instance: Instance, roster: Roster) -> Stay:
    end = roster.end(instance.id)
    return Stay(
        instance.type,
        instance.zone,
        instance.launched_s,
        None if end is None else end.ended_s,
        end is not None and end.taken,
        instance.on_demand,
        instance.spot,
    )


def keep_prices(root: Path, prices: Prices) -> None:
    """Keep what markets cost, in place of what was kept before, durably. Raises OSError."""
    steps_of = {market: [list(step) for step in steps] for market, steps in prices.items()}
    write_atomic(root / FOLDER / _FILE, json.dumps(steps_of).encode())


def kept_prices(root: Path) -> dict[str, list[list[float]]]:
    """Return what markets cost; nothing where nothing was kept. Raises LedgerError for a file that holds none."""
    path = root / FOLDER / _FILE
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LedgerError(_damaged(path, str(error))) from error
    if not isinstance(values, dict) or not all(map(_are_steps, values.values())):
        raise LedgerError(_damaged(path, 'expected {"TYPE/ZONE": [[seconds since 1970, dollars an hour], ...]}'))
    return values


def _are_steps(steps: Any) -> bool:
    if not isinstance(steps, list) or not steps:
        return False
    for step in steps:
        match step:
            case [int() | float() as at_s, int() | float() as price] if math.isfinite(at_s) and 0 <= price < math.inf:
                pass
            case _:
                return False
    return all(before[0] <= after[0] for before, after in itertools.pairwise(steps))


def _damaged(path: Path, why: str) -> str:
    return f"{path} is damaged ({why}): move it away; instances are then counted at their full prices."
