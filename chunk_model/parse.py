"""Lifetimes from text, and the hedged lifetime for which a chunk size is chosen.

Examples are "normal(45m,10m)" and "mixture(0.3*exponential(5m),0.7*weibull(1.5,2h))". "interruptions(5%)" is the
exponential distribution by which 5% of the machines are reclaimed within a month; "interruptions(5-10%)" uses the
middle of the band.

The hedged lifetime is a mixture of the observed lives (four fifths) and the family fitted to them (one fifth). A choice
for the fitted family alone loses goodput if the lives do not follow the family, because a fit weighs all ages, while an
all-or-nothing chunk depends on the survival at one age. A choice for the observed lives alone (Kaplan and Meier) puts
the chunk at the end of a gap between these lives, and with few lives the gap is random. docs/notes/sizing.md has the
measurements.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from chunk_model.families import FORMULAS, Family, Mixture
from chunk_model.kaplan_meier import KaplanMeier
from chunk_model.lifetime import Lifetime, LifetimeError, parse_duration
from chunk_model.observations import Observations
from chunk_model.prices import interrupted_monthly, parse_share

MAX_CHARS = 2_000  # maximum length of the text of a lifetime
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_EXAMPLES = (
    "normal(45m,10m), exponential(45m), weibull(1.5,40m), lognormal(45m,0.8), interruptions(5%) a month "
    "or mixture(0.3*exponential(5m),0.7*weibull(1.5,2h))"
)


def parse(text: str) -> Lifetime:
    """Parse a distribution such as "normal(45m,10m)", or the text that `str` gives for a distribution.

    Raises LifetimeError for an unknown name, a wrong number of parameters, an invalid number or a value out of range. A
    Kaplan–Meier curve has no text form.
    """
    if len(text) > MAX_CHARS:
        raise LifetimeError(f"a lifetime has {len(text):,} characters; expected at most {MAX_CHARS:,}: {_EXAMPLES}")
    match = _CALL.fullmatch(text)
    name = match[1].lower() if match else ""
    if match is None or (name not in FORMULAS and name not in ("mixture", "interruptions", "kaplan_meier")):
        raise LifetimeError(f'cannot read the lifetime "{text}": expected for example {_EXAMPLES}')
    if name == "kaplan_meier":
        raise LifetimeError(
            f'cannot read the lifetime "{text}": a Kaplan-Meier curve has as many numbers as there were deaths; give '
            f"the observed lives themselves, or for example {_EXAMPLES}"
        )
    try:
        if name == "interruptions":
            return interrupted_monthly(parse_share(match[2]))
        return _mixture(match[2]) if name == "mixture" else _of_family(FORMULAS[name], match[2])
    except LifetimeError as error:
        raise LifetimeError(f'cannot use the lifetime "{text}": {error}; expected for example {_EXAMPLES}') from None


def _of_family(family: type[Family], inside: str) -> Lifetime:
    given = [part.strip() for part in inside.split(",")] if inside.strip() else []
    if len(given) != len(family.UNITS):
        wanted = f"{len(family.UNITS)} ({', '.join(field.name for field in fields(family))})"
        raise LifetimeError(f"{family.NAME} has {len(given)} parameters, expected {wanted}")
    read = (parse_duration if unit else _number for unit in family.UNITS)
    values: list[Any] = [reader(part) for reader, part in zip(read, given, strict=True)]
    return family(*values)


def _mixture(inside: str) -> Mixture:
    weights, parts = [], []
    for part in _split(inside):
        weight, star, law = part.partition("*")
        if not star:
            raise LifetimeError(f'the part "{part.strip()}" of a mixture has no weight: write 0.3*exponential(5m)')
        weights.append(_number(weight))
        parts.append(parse(law))
    return Mixture(tuple(weights), tuple(parts))


def _split(text: str) -> list[str]:
    """Split at the commas outside of all brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise LifetimeError(f'"{text.strip()}" is not a number') from None


# Weight of the observed lives. The mean loss on other lives is the same for weights from 0.5 to 0.8 and higher above
# 0.8. The worst loss on the observed lives falls as the weight rises.
OBSERVED_WEIGHT = 0.8
MIN_DEATHS = 10  # with fewer independent deaths, the curve of the observed lives adds nothing to the fitted family


def hedged(lifetime: Lifetime, observations: Observations) -> Lifetime:
    """Return S(t) = ⅕·S of `lifetime` + ⅘·S of the Kaplan–Meier estimate. Return `lifetime` itself if it is such an
    estimate, or with fewer than `MIN_DEATHS` independent deaths."""
    if isinstance(lifetime, KaplanMeier) or observations.independent_deaths < MIN_DEATHS:
        return lifetime
    return Mixture((1 - OBSERVED_WEIGHT, OBSERVED_WEIGHT), (lifetime, KaplanMeier.of(observations)))
