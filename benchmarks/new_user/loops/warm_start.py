"""Load trained weights, train on with early stopping, keep the best epoch."""

import copy
import os

import torch
import torch.nn.functional as F

from benchmarks.new_user.models import Transformer, verses

text = torch.tensor(verses(2_600)).long()
model = Transformer()
model.load_state_dict(torch.load(os.environ["TRAINED"], weights_only=True))
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
best, lowest, waited = copy.deepcopy(model.state_dict()), float("inf"), 0
while waited < 4:
    for rows in torch.randperm(1_600).split(32):
        loss = F.cross_entropy(model(text[rows, :-1]).flatten(0, 1), text[rows, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        tested = float(F.cross_entropy(model(text[2_400:, :-1]).flatten(0, 1), text[2_400:, 1:].flatten()))
    print("loss", tested)
    waited = 0 if tested < lowest else waited + 1
    if tested < lowest:
        best, lowest = copy.deepcopy(model.state_dict()), tested
