"""The baseline: LeNet on MNIST in a plain PyTorch loop, with gridml's learning rates.

Prints one line of JSON: images per second after the first batches, peak memory, accuracy on the test set.

    python -m benchmarks.plain_loop EPOCHS [SEED]
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

import gridml
from benchmarks.programs.lenet import BATCH, COUNT, lenet

WARM = COUNT // 15  # images that are not measured: the first steps allocate


def main() -> None:
    epochs, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    data = gridml.datasets.mnist().train
    pixels, labels = torch.tensor(data.images[:COUNT]), torch.tensor(data.labels[:COUNT])
    model = lenet()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    began, done, trained = 0.0, 0, 0
    for epoch in range(epochs):
        order = torch.from_numpy(rng.permutation(len(labels)))
        for at in range(0, len(order), BATCH):
            rows = order[at : at + BATCH]
            optimiser.param_groups[0]["lr"] = 0.05 * gridml.linear_decay(trained / (len(order) * epochs))
            trained += len(rows)
            loss = F.cross_entropy(model(pixels[rows].float() / 255), labels[rows])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            if epoch or at >= WARM:
                began = began or time.perf_counter()
                done += len(rows)
    done -= BATCH  # the batch that ended when the clock started
    rate = done / (time.perf_counter() - began)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    test = gridml.datasets.mnist().test
    with torch.no_grad():
        digits = model(torch.tensor(test.images).float() / 255).argmax(1).numpy()
    accuracy = float((digits == test.labels).mean())
    print(json.dumps({"rate": rate, "peak_kb": peak_kb, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
