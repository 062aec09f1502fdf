"""How long workers live, and how large a chunk should be for it. Plain numbers in and out; imports no other package.

Machines that live 45 minutes on average, a tenth of a second to train a vertex, three minutes to start a job:

>>> from chunk_model.choose import choose
>>> from chunk_model.goodput import Costs
>>> from chunk_model.parse import parse
>>> choice = choose(parse("exponential(45m)"), Costs(exec_s=0.1, start_s=180))
>>> choice.chunk
8697
>>> round(choice.goodput, 2)
0.68

Read `lifetime` (and its families), `observations`, `fit` and `select` for how long workers live; `costs`, `goodput`
and `choose` for the size of a chunk; `paper` for the formulas as the paper prints them; `replay` for a check that
knows none of these formulas; `trace` for lives that were recorded.
"""
