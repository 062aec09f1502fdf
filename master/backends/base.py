"""The contract of back ends, under the import path of external plug-ins."""

from master.state.jobs import (
    Backend as Backend,
)
from master.state.jobs import (
    BackendFacts as BackendFacts,
)
from master.state.jobs import (
    BackendOptions as BackendOptions,
)
from master.state.jobs import (
    JobEvent as JobEvent,
)
from master.state.jobs import (
    State as State,
)
from master.state.jobs import (
    in_words as in_words,
)
