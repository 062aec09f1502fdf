"""What an instance is started with: where its master is, and what shows that it is of the fleet."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from gridml.carriers.ssh import Address
from gridml.dataclass_json import from_json
from gridml.errors import UsageError
from gridml.protocol.foreign_files import ForeignFile, read_regular

_LONGEST = 1 << 16  # bytes
_WRITTEN = "The instance's user data write it."


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
    names = {field.name for field in dataclasses.fields(Instance)}
    try:
        values = json.loads(read_regular(path, _LONGEST))
        instance = from_json(Instance, {name: value for name, value in values.items() if name in names})
    except (OSError, ForeignFile) as error:
        raise UsageError(f"{path} cannot be read: {error}. {_WRITTEN}") from None
    except (ValueError, TypeError, AttributeError, RecursionError):  # what they say may quote the token
        raise UsageError(f"{path} is not what was expected: JSON with {', '.join(sorted(names))}. {_WRITTEN}") from None
    numbers = {"port": instance.port, "orphan_s": instance.orphan_s, "watch_s": instance.watch_s}
    wrong = [name for name, value in numbers.items() if not (math.isfinite(value) and value > 0)]
    if wrong or instance.port > 65535:
        raise UsageError(f"{path}: {' and '.join(wrong) or 'port'} cannot be that number. {_WRITTEN}")
    return instance
