"""An optimiser works without torch's compiler, bit for bit, and the compiler is imported when needed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real
STEPS = """
import hashlib, json, sys
import torch
if {lazy_dynamo}:
    from gridml.engine.lazy_dynamo import import_dynamo_lazily
    import_dynamo_lazily()
torch.manual_seed(1)
digests = []
for optimiser_class in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimiser = optimiser_class(model.parameters(), lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        model(torch.ones(7, 5)).square().mean().backward()
        optimiser.step()
    digests.append(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
"""
LOADED = "print(json.dumps([digests, 'sympy' in sys.modules]))"
COMPILES = """
import torch._dynamo.config
compiled = torch.compile(lambda x: x * 2 + 1, backend="eager")
torch._dynamo.reset()
print(json.dumps([compiled(torch.ones(2)).tolist(), 'sympy' in sys.modules]))
"""


def run(*parts: str, lazy_dynamo: bool) -> list[object]:
    code = "".join(parts).replace("{lazy_dynamo}", str(lazy_dynamo))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed: list[object] = json.loads(done.stdout)
    return printed


def test_optimisers_step_to_the_same_bits_without_the_compiler() -> None:
    digests, loaded = run(STEPS, LOADED, lazy_dynamo=True)
    assert not loaded, "the compiler was imported all the same"
    assert digests == run(STEPS, LOADED, lazy_dynamo=False)[0]


def test_the_compiler_comes_when_it_is_asked_for() -> None:
    assert run(STEPS, COMPILES, lazy_dynamo=True) == [[3.0, 3.0], True]
