"""Options of `gridml launch`: their values, and invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from gridml.errors import UsageError
from master.backends.ec2.options import USUAL_TYPES, Ec2Options
from master.store.settings import Settings


def test_lists_come_with_commas_or_one_by_one() -> None:
    options = Ec2Options(instance_types=("c5.xlarge,m5.xlarge", " c5.xlarge", "c6i.xlarge"), zones=("eu-west-1a,",))
    assert options.instance_types == ("c5.xlarge", "m5.xlarge", "c6i.xlarge")
    assert options.zones == ("eu-west-1a",)


def test_options_come_back_from_json() -> None:
    options = Ec2Options(paper=True, budget=3.0, subnets=("subnet-0123456789abcdef0",))
    assert Ec2Options.from_json(options.to_json()) == options


def test_the_papers_fleet() -> None:
    options = Ec2Options(paper=True)
    assert (options.instance_types, options.max_price) == (("c1.xlarge",), 0.10)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"instance_types": ("huge",)}, "--instance-types got 'huge'"),
        ({"region": "Mars!"}, "--region got"),
        ({"zones": ("a b",)}, "--zones got 'a b'"),
        ({"subnets": ("vpc-1",)}, "--subnets got 'vpc-1'"),
        ({"image": "ami"}, "--image got 'ami'"),
        ({"security_group": "default"}, "--security-group got"),
        ({"max_price": 0.0}, "--max-price is 0"),
        ({"budget": -1.0}, "--budget is -1"),
        ({"budget": float("nan")}, "--budget is nan"),
        ({"boot_patience": 0.0}, "--boot-patience is 0"),
        ({"orphan_patience": 1e9}, "--orphan-patience is 1e"),
        ({"paper": True, "max_price": 0.2}, "--paper alone"),
        ({"paper": True, "instance_types": ("c5.xlarge",)}, "--paper alone"),
        ({"on_demand": True, "max_price": 0.2}, "--on-demand and --max-price"),
    ],
)
def test_what_makes_no_sense(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Ec2Options(**given)


def test_workers_are_called_instances(programs: Any) -> None:
    with pytest.raises(UsageError, match=r"--instances is 0; expected at least 1"):
        Settings(program=programs / "tally.py", backend="ec2", workers=0, options=Ec2Options())


def test_there_are_ten_types_or_more_for_each_architecture() -> None:
    assert all(len(types) >= 10 for types in USUAL_TYPES.values())
