"""Histories of spot prices, from any source."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chunk_model.prices import AWS, COLUMNS, price_steps, read_prices, read_record
from chunk_model.traces import TraceError


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


def test_a_repeated_price_is_no_step_and_the_higher_of_two_at_once_counts() -> None:
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


HISTORY = [
    {**entry(0, price), "Timestamp": f"2026-01-0{day}T00:00:00+00:00"}
    for day, price in ((3, "0.1"), (2, "0.4"), (1, "0.1"))
]


def as_csv() -> str:
    return "\n".join([",".join(COLUMNS), *(",".join(each[name] for name in AWS) for each in HISTORY)])


def as_text(*zone_id: str) -> str:
    """Fields in the order of their names, as the command writes them."""
    rows = ([*each.values()] for each in HISTORY)
    return "\n".join(
        "\t".join(["SPOTPRICEHISTORY", zone, *zone_id, kind, product, price, at])
        for at, kind, zone, product, price in rows
    )


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"SpotPriceHistory": HISTORY}, indent=4),
        json.dumps({"NextToken": "", "SpotPriceHistory": HISTORY}),
        json.dumps(HISTORY),
        as_text(),
        as_text("use1-az1"),
    ],
)
def test_every_output_of_aws_gives_the_lives_of_the_csv(tmp_path: Path, text: str) -> None:
    (tmp_path / "prices.csv").write_text(as_csv())
    (tmp_path / "prices").write_text(text)
    assert read_record(tmp_path / "prices") == read_record(tmp_path / "prices.csv")
    assert read_record(tmp_path / "prices").lives


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps({"SpotPriceHistory": []}), "has no prices; expected such as"),
        (
            json.dumps({"SpotPriceHistory": [HISTORY[0], {**HISTORY[1], "SpotPrice": "x"}]}),
            r"SpotPriceHistory\[1\]: got",
        ),
        (
            json.dumps({"SpotPriceHistory": [HISTORY[0], {"SpotPrice": "1"}]}),
            r"SpotPriceHistory\[1\]: got '1', expected",
        ),
        (json.dumps({"SpotPriceHistory": [HISTORY[0], 7]}), r"SpotPriceHistory\[1\]: got '7', expected"),
        (as_text() + "\n" + as_text()[:40], "line 4: got"),
    ],
)
def test_an_output_of_aws_that_is_damaged(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "prices").write_text(text)
    with pytest.raises(TraceError, match=says):
        read_record(tmp_path / "prices")
