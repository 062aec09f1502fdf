"""`wide_net`, whose first workers kill themselves while a snapshot of it is on its way from the device.

DEATHS names a folder; KILLS is the number of them: a worker that finds a copy under way as f is called makes a file
there and ends by SIGKILL. PRETEND has a device in Python stand for the GPU.
"""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from wide_net import Network, Sample, graph  # type: ignore[import-not-found]

import gridml
from gridml.engine import mirror

if "PRETEND" in os.environ:
    from tests.support import pretend_device

    pretend_device.install()

DEATHS, KILLS = Path(os.environ.get("DEATHS", ".")), int(os.environ.get("KILLS", "0"))
under_way: list[mirror.PendingCopy] = []  # copies to the host so far
SPARED = 3  # copies of a worker, the first as it begins: a chunk that nothing is credited of three times ends the run


def watched(*arguments: Any) -> mirror.PendingCopy:
    under_way.append(original(*arguments))
    return under_way[-1]


original = mirror.PendingCopy
mirror.PendingCopy = watched  # type: ignore[assignment,misc]


@gridml.update(batch=256)
def train(samples: gridml.Batch[Sample], network: Network) -> None:
    if len(under_way) > SPARED and not under_way[-1].event.query():
        for number in range(KILLS):
            with contextlib.suppress(FileExistsError):
                (DEATHS / f"{number}").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
    network.step(F.cross_entropy(network.model(samples.features), samples.label))


program = gridml.Program(graph, train, epochs=1)
