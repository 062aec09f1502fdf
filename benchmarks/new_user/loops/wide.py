"""25 million parameters."""

import torch
import torch.nn.functional as F

import gridml
from benchmarks.new_user.models import Wide

data = gridml.datasets.mnist()
pixels, labels = torch.tensor(data.train.images[:5_120]), torch.tensor(data.train.labels[:5_120])
model = Wide()
optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
for _epoch in range(1):
    for rows in torch.randperm(len(labels)).split(128):
        loss = F.cross_entropy(model(pixels[rows].float() / 255), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        guessed = model(torch.tensor(data.test.images[:2_000]).float() / 255).argmax(1)
    print("accuracy", float((guessed.numpy() == data.test.labels[:2_000]).mean()))
