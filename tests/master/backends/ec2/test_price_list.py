"""Queries of Amazon's price list, and the parsing of its answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from master.backends.ec2.cloud import full_price, question


def test_linux_on_shared_hardware_without_anything_else_is_asked_for() -> None:
    asked = question("c5.xlarge", "eu-central-1")
    filters = {each["Field"]: each["Value"] for each in asked["Filters"]}
    assert (filters["instanceType"], filters["regionCode"]) == ("c5.xlarge", "eu-central-1")
    assert filters["operatingSystem"] == "Linux" and filters["capacitystatus"] == "Used"


def test_the_price_on_demand_is_read_and_no_other(product: Callable[[float], str]) -> None:
    assert full_price([product(0.17)]) == pytest.approx(0.17)


def test_of_several_the_dearest_is_taken_so_that_a_budget_holds(product: Callable[[float], str]) -> None:
    assert full_price([product(0.17), product(0.19)]) == pytest.approx(0.19)


def test_what_has_no_price_an_hour_is_not_known(product: Callable[[float], str]) -> None:
    for products in ([], ["{}"], ['{"terms": {}}'], [product(0.0)], [product(0.2).replace("Hrs", "Quantity")]):
        assert full_price(products) is None
