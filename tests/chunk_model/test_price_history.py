"""Histories of spot prices, from any source."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from chunk_model.prices import price_steps, read_prices


def entry(second: int, price: str, zone: str = "us-east-1a") -> dict[str, Any]:
    return {
        "Timestamp": datetime.fromtimestamp(second, UTC),
        "InstanceType": "c3.xlarge",
        "AvailabilityZone": zone,
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": price,
    }


def test_the_newest_comes_first_and_steps_are_in_order() -> None:
    history = [entry(300, "0.05"), entry(200, "0.04"), entry(200, "0.01", "us-east-1b"), entry(100, "0.03")]
    assert price_steps(history) == {
        "c3.xlarge/us-east-1a": [[100.0, 0.03], [200.0, 0.04], [300.0, 0.05]],
        "c3.xlarge/us-east-1b": [[200.0, 0.01]],
    }


def test_a_price_that_is_told_again_is_no_step_and_of_two_at_once_the_higher_counts() -> None:
    history = [entry(300, "0.04"), entry(200, "0.04"), entry(200, "0.02"), entry(100, "0.03")]
    assert price_steps(history) == {"c3.xlarge/us-east-1a": [[100.0, 0.03], [200.0, 0.04]]}


@pytest.mark.parametrize("bad", [{"SpotPrice": "dear"}, {"SpotPrice": "-1"}, {"SpotPrice": "nan"}, {"Timestamp": 7}])
def test_what_is_no_entry_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        price_steps([entry(100, "0.03") | bad])


def test_a_file_and_the_call_say_the_same() -> None:
    lines = ["timestamp,instance_type,zone,product,price_usd_per_h"]
    lines += [f"1970-01-01 00:0{m}:00+00:00,c3.xlarge,us-east-1a,Linux/UNIX,0.0{m}" for m in (3, 1, 2)]
    ((name, (time_s, price)),) = read_prices(lines, "prices.csv").items()
    (steps,) = price_steps([entry(60 * m, f"0.0{m}") for m in (2, 3, 1)]).values()
    assert name == "c3.xlarge/us-east-1a/Linux/UNIX"
    assert [time_s.tolist(), price.tolist()] == [list(each) for each in zip(*steps, strict=True)]
