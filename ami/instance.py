"""What an instance is started with: where its master is, and what shows that it is of the fleet."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from gridml.carriers.ssh import Address
from gridml.errors import UsageError
from gridml.protocol.foreign_files import ForeignFile, read_regular

_LONGEST = 1 << 16


@dataclass(frozen=True)
class Instance:
    """The user data's `/etc/gridml/instance.json`.

    `orphan_s` is how long the master may be silent before the instance ends itself, `watch_s` how often EC2 is asked
    whether it takes the instance away; seconds.
    """

    run: str
    host: str
    port: int
    host_key: str
    fleet_token: str = dataclasses.field(repr=False)
    orphan_s: float = 900.0
    watch_s: float = 5.0

    @property
    def master(self) -> Address:
        return Address(self.host, self.port, self.host_key)


def read(path: Path) -> Instance:
    """Raises UsageError, which never shows what is in the file."""
    kinds = {
        "run": str,
        "host": str,
        "port": int,
        "host_key": str,
        "fleet_token": str,
        "orphan_s": float,
        "watch_s": float,
    }
    needed = {field.name for field in dataclasses.fields(Instance) if field.default is dataclasses.MISSING}
    try:
        values = json.loads(read_regular(path, _LONGEST))
    except (OSError, ForeignFile) as error:
        raise UsageError(f"{path} cannot be read: {error}. The instance's user data write it.") from None
    except ValueError:
        raise UsageError(f"{path} is not JSON. The instance's user data write it.") from None
    if not isinstance(values, dict) or (missing := sorted(needed - values.keys())):
        lacking = ", ".join(missing) if isinstance(values, dict) else "everything"
        raise UsageError(f"{path} lacks {lacking}. The instance's user data write it.")
    for name, kind in kinds.items():
        value = values.get(name, 1)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        right = isinstance(value, str) if kind is str else number and math.isfinite(value) and value > 0
        if name in needed | {"orphan_s", "watch_s"} and name in values and not right:
            raise UsageError(
                f"{path}: {name} is of the wrong kind; expected {'text' if kind is str else 'a number above 0'}."
            )
    return Instance(**{name: kind(values[name]) for name, kind in kinds.items() if name in values})
