"""Which rule merges a tensor, from what the program declared and from what the tensor is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gridml.aggregates.base import Aggregate, Array
from gridml.aggregates.maximum import Maximum
from gridml.aggregates.pooled import Pooled
from gridml.aggregates.stale_mean import StaleMean
from gridml.errors import ProgramError


@dataclass(frozen=True)
class ByName:
    """Rules by pattern of the parameter's name, in order; made by `by_name`."""

    patterns: tuple[tuple[str, Aggregate], ...]

    def find(self, name: str) -> tuple[str, Aggregate] | None:
        """The first pattern that matches, and its rule."""
        return next(((pattern, rule) for pattern, rule in self.patterns if fnmatchcase(name, pattern)), None)


def by_name(rules: Mapping[str, Aggregate]) -> ByName:
    """Choose rules by the parameter's name, as in `by_name({"*.bias": mean(), "*": stale_mean()})`.

    Patterns are those of the shell (`*`, `?`, `[ab]`), case counts, the first that matches wins, and what none
    matches gets `stale_mean`. Raises ProgramError if a value is not a rule.
    """
    for pattern, rule in rules.items():
        if not isinstance(rule, Aggregate):
            raise ProgramError(
                f"by_name got {rule!r} for pattern {pattern!r}; expected a rule, such as gridml.stale_mean()"
            )
    return ByName(tuple(rules.items()))


def rule_for(name: str, array: Array, declared: Aggregate | ByName | None) -> Aggregate:
    """The rule for the tensor `name` whose values look like `array`.

    A pattern that spells out the last part of the name (`*.running_var`, not `*.bn.*`) is obeyed, or refused with
    ProgramError if its rule cannot merge such a dtype. Otherwise BatchNorm statistics are pooled, integers and
    truth values take the maximum unless the declared rule can merge them (`add`), and everything else has the
    declared rule or `stale_mean`.
    """
    pattern, rule = _declared_for(name, declared)
    if not _spells_out(pattern, name):
        if array.dtype.kind == "f" and is_statistic(name):
            return Pooled(variance=name.endswith("var"))
        if array.dtype.kind in "iub" and not rule.takes(array.dtype):
            return Maximum()
    if not rule.takes(array.dtype):
        raise ProgramError(
            f"tensor {name!r} has dtype {array.dtype}, which {rule!r} cannot merge; "
            "expected a floating-point dtype, or for integers add() or maximum(), chosen with gridml.by_name"
        )
    return rule


def is_chosen(name: str, array: Array, declared: Aggregate | ByName | None) -> bool:
    """Whether the program asks for the rule of this very tensor: with a pattern that spells out its name, or with a
    rule for contributions (`add`, `maximum`), which is no default for what is trained."""
    pattern, rule = _declared_for(name, declared)
    return _spells_out(pattern, name) or (rule.is_contribution and rule.takes(array.dtype))


def is_weight(name: str, array: Array, declared: Aggregate | ByName | None) -> bool:
    """Whether a module's tensor is floating-point and merged as a weight, which may be rounded as it travels, and
    averaged over versions: sums, statistics and whole numbers are to stay as they are."""
    return array.dtype.kind == "f" and rule_for(name, array, declared).near


def _declared_for(name: str, declared: Aggregate | ByName | None) -> tuple[str, Aggregate]:
    """The pattern that matches a tensor's name, and its rule."""
    if isinstance(declared, ByName):
        return declared.find(name) or ("*", StaleMean())
    return "*", declared if declared is not None else StaleMean()


def _spells_out(pattern: str, name: str) -> bool:
    """Whether a pattern says the tensor's own name in its layer."""
    return _last(pattern) == _last(name)


def _last(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[2]


def is_statistic(name: str) -> bool:
    """Whether a module's tensor is a running mean or variance; an array field may have such a name for its own
    reasons."""
    inside = name.count("/") != 1  # "Type/field" is an array field, "Type/0/field/parameter" is in a module
    return inside and _last(name) in ("running_mean", "running_var")
