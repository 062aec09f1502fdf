"""The prices that a run's instances were billed at, kept beside the roster: a provider forgets its history.

`prices.json` in the folder `fleet` of the run directory is {"TYPE/ZONE": [[seconds since 1970, dollars an hour], ...]},
each list in order of time. A back end writes it, whole or not at all; reports and later masters read it.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

from gridml.errors import LedgerError
from master.decisions.spending import Prices
from master.sftp.roster import FOLDER

_FILE = "prices.json"


def keep_prices(root: Path, prices: Prices) -> None:
    """Keep what markets cost, in place of what was kept before, durably. Raises OSError."""
    path = root / FOLDER / _FILE
    temporary = path.with_name(f".{_FILE}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({market: [list(step) for step in steps] for market, steps in prices.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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
