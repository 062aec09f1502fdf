"""The plug-in interface of back ends, under the import path of external plug-ins."""

from master.ports.plugin import (
    BackendPlugin as BackendPlugin,
)
from master.ports.plugin import (
    BatchSystem as BatchSystem,
)
from master.ports.plugin import (
    Command as Command,
)
from master.ports.plugin import (
    MasterJob as MasterJob,
)
from master.ports.plugin import (
    Upkeep as Upkeep,
)
