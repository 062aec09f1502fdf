"""What instances cost on demand: what is asked of Amazon's price list (GetProducts), and what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

REGION = "us-east-1"  # one of the few that have the price list, which is of all regions


def question(type: str, region: str) -> dict[str, Any]:
    """The parameters of a call for one type: Linux on shared hardware, without reservations or software that costs."""
    wanted = {
        "instanceType": type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    return {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1", "Filters": filters}


def full_price(products: Iterable[str]) -> float | None:
    """Dollars an hour on demand by the products (JSON) that were found, the dearest if they differ; None for none."""
    prices = [price for product in products for price in _prices(json.loads(product))]
    return max(prices, default=None)


def _prices(product: dict[str, Any]) -> Iterable[float]:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            price = float(dimension.get("pricePerUnit", {}).get("USD", "nan"))
            if dimension.get("unit") == "Hrs" and 0 < price < math.inf:
                yield price
