"""CIFAR-10: a ResNet with BatchNorm and flips."""

import torch
import torch.nn.functional as F

import gridml
from benchmarks.new_user.models import resnet

data = gridml.datasets.cifar10(edition="jpeg")
pixels, labels = torch.tensor(data.train.images[:2_000]), torch.tensor(data.train.labels[:2_000])
model = resnet()
optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
for _epoch in range(2):
    for rows in torch.randperm(len(labels)).split(64):
        images = pixels[rows].float() / 127.5 - 1
        flipped = torch.where((torch.rand(len(rows)) < 0.5)[:, None, None, None], images.flip(3), images)
        loss = F.cross_entropy(model(flipped), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        guessed = model(torch.tensor(data.test.images[:1_000]).float() / 127.5 - 1).argmax(1)
    model.train()
    print("accuracy", float((guessed.numpy() == data.test.labels[:1_000]).mean()))
