"""What is odd about the optimiser steps that f takes, and about the weights of edges that it writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from gridml.engine.engine import Engine
from gridml.engine.modules import Trainable

MOST_NAMED = 4  # parameters in one message


@dataclass
class _Tried:
    """What the tried batches have made of the parameters of one module field, over all its vertices."""

    names: set[str] = field(default_factory=set)
    reached: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    pulled: bool = False
    asked: bool = False
    has_rate: bool = False

    def add(self, seen: Trainable, moved: Collection[str]) -> None:
        whole = "/".join(map(str, seen.module))
        self.names |= seen.names
        self.reached |= seen.reached
        self.moved |= {name for name in seen.names if f"{whole}/{name}" in moved}
        self.pulled |= seen.pulled
        self.asked |= seen.asked
        self.has_rate |= seen.has_rate


def not_trained(batches: Iterable[Trainable], moved: Collection[str]) -> Iterator[str]:
    """Yield what f leaves untrained: of all modules with an optimiser, `batches` say what each batch found and `moved`
    which tensors are not any more what they were.

    Whether a module is trained shows by steps and gradients, not by whether it moved: a rate may begin at 0, and steps
    may be gathered for. Modules without an optimiser, and frozen parameters, stay as they are on purpose.
    """
    tried: dict[str, _Tried] = {}
    for seen in batches:
        if seen.names:
            tried.setdefault(f"{seen.module[0]}.{seen.module[2]}", _Tried()).add(seen, moved)
    if not tried:
        return
    if not any(each.moved for each in tried.values()):
        count, those = sum(len(each.names) for each in tried.values()), ", ".join(tried)
        if not any(each.asked for each in tried.values()):
            yield (
                f"f took no optimiser step in the batches that were tried, and moved none of the {count:,} trainable "
                f"parameters of {those}. Call step of that vertex for the loss, as in network.step(loss): returning "
                f"the loss, or loss.backward(), trains nothing. To step every k batches, give step accumulate=k"
            )
        elif not any(each.pulled for each in tried.values()) and any(each.has_rate for each in tried.values()):
            yield (
                f"the steps that f took moved none of the {count:,} trainable parameters of {those}: all their "
                f"gradients are 0, or there are none"
            )
        return
    for name, each in tried.items():
        if not each.asked and each.pulled and not each.moved:
            yield (
                f"the loss that f steps for leads to {name}, and none of its {len(each.names):,} trainable parameters "
                f"is stepped: name its vertex as well, as in network.step(loss, head). Where it is to stay as it is, "
                f"give gridml.module no optimiser"
            )
        left = sorted(each.names - each.reached - each.moved)
        if each.asked and each.reached and left:
            yield (
                f"in the batches that were tried, of the first epoch, no loss of f led to {len(left):,} of the "
                f"{len(each.names):,} trainable parameters of {name} ({_listed(left)}). Where none ever does they stay "
                f"as they were made"
            )


def weights_in_vain(engine: Engine) -> Iterator[str]:
    """Yield for each edge field whose weights f has written in a trial that this changes nothing."""
    assert engine.chunk is not None
    type_name = engine.chunk.tables[engine.chunk.driver].type
    for name in sorted(engine.reweighted):
        yield (
            f"f wrote the weights of {type_name}.{name}, and nobody will see it: edges stay as graph() made them. "
            f"What f is to change is a field, such as gridml.array(..., mutable=True) of {type_name}"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
