"""Lifetime models of workers, and the chunk size that suits them. Plain numbers in and out; imports nothing of gridml.

Machines that live 45 minutes on average, a tenth of a second to train a vertex, three minutes to start a job:

>>> from chunk_model.choose import choose
>>> from chunk_model.goodput import Costs
>>> from chunk_model.parse import parse
>>> choice = choose(parse("exponential(45m)"), Costs(exec_s=0.1, start_s=180))
>>> choice.chunk
8697
>>> round(choice.goodput, 2)
0.68

Lifetimes: `lifetime`, `families`, `kaplan_meier`, `observations` and `fit`. Chunk sizes: `goodput`, `sizes` and
`choose`. `paper` has the formulas as the paper prints them, `replay` a check that shares no formula with them, and
`traces` and `prices` read recorded lives.
"""
