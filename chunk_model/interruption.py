"""Lives from how often a provider says that it takes machines back: a share of them a month.

Amazon's Spot Instance Advisor gives such a share for each type in bands, "<5%", "5-10%" and so on: how much capacity
was reclaimed within the trailing month. It says nothing of when, so the law is the one without memory.
"""

from __future__ import annotations

import math
import re

from chunk_model.families import Exponential
from chunk_model.lifetime import LifetimeError

MONTH_S = 30 * 86_400.0
LEAST, MOST = 0.001, 0.99  # of the machines a month; what is said of fewer or more is no figure to build on
_SHARE = re.compile(r"\s*<?\s*(?:(\d+(?:\.\d+)?)\s*%?\s*-\s*)?(\d+(?:\.\d+)?)\s*%\s*")


def interrupted_monthly(share: float) -> Exponential:
    """Return the exponential law by which a `share` of the machines is taken within 30 days: S(30 d) = 1 - share, so
    the mean is -30 d / ln(1 - share). Raises LifetimeError for a share outside `LEAST` to `MOST`."""
    if not LEAST <= share <= MOST:
        raise LifetimeError(f"a share {share:g} of machines is taken a month; expected {LEAST:g} to {MOST:g}")
    return Exponential(-MONTH_S / math.log1p(-share))


def parse_share(text: str) -> float:
    """Return the share in a text such as "5%", "<5%" (its end) or "5-10%" (its middle). Raises LifetimeError."""
    match = _SHARE.fullmatch(text)
    if match is None:
        raise LifetimeError(f'cannot read the share "{text.strip()}" a month: give a percentage such as 5% or 5-10%')
    low, high = float(match[1] or match[2]) / 100, float(match[2]) / 100
    if low > high:
        raise LifetimeError(f'the share "{text.strip()}" begins above its end: give the smaller percentage first')
    return (low + high) / 2
