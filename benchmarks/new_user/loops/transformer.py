"""A transformer by AdamW, with warm-up and clipping."""

import os

import torch
import torch.nn.functional as F

from benchmarks.new_user.models import Transformer, verses

text = torch.tensor(verses(2_600)).long()
model = Transformer()
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
steps = 2 * (2_400 // 32)
schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / (0.1 * steps)))
for _epoch in range(2):
    for rows in torch.randperm(2_400).split(32):
        scores = model(text[rows, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), text[rows, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        print("loss", float(F.cross_entropy(model(text[2_400:, :-1]).flatten(0, 1), text[2_400:, 1:].flatten())))
torch.save(model.state_dict(), os.environ["TRAINED"])
