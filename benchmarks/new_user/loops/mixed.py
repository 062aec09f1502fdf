"""Accumulated gradients, bfloat16 by autocast, torch.compile, on the GPU if there is one."""

import torch
import torch.nn.functional as F

from benchmarks.new_user.models import Transformer, verses

device = "cuda" if torch.cuda.is_available() else "cpu"
text = torch.tensor(verses(2_600)).long().to(device)
model = Transformer().to(device)
compiled = torch.compile(model)
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _epoch in range(1):
    for number, rows in enumerate(torch.randperm(2_400).split(16)):
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(compiled(text[rows, :-1]).flatten(0, 1), text[rows, 1:].flatten())
        (loss / 4).backward()
        if number % 4 == 3:
            optimiser.step()
            optimiser.zero_grad()
    with torch.no_grad():
        print("loss", float(F.cross_entropy(model(text[2_400:, :-1]).flatten(0, 1), text[2_400:, 1:].flatten())))
