"""The saved basis of a fleet's costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridml.errors import LedgerError
from master.sftp.roster import End, FleetFacts, GoodbyeMessage, Instance, Roster
from master.sftp.spending import InstanceUsage, instance_usages, save_prices, saved_prices, spent


@pytest.fixture
def roster(tmp_path: Path) -> Roster:
    roster = Roster(tmp_path)
    roster.create(FleetFacts("run", "0" * 64, "1", "us-east-1", "ami-1", ""))
    return roster


def test_a_stay_ends_when_the_instance_does_and_not_with_its_worker(roster: Roster) -> None:
    for number in (1, 2, 3):
        roster.keep(Instance(f"i-{number}", f"w{number}", "m", "a", 100.0 * number, 0.5))
        roster.keep(GoodbyeMessage(f"i-{number}", 0, "done", 1_000.0))
    roster.keep(End("i-1", 1_100.0, "shut down"))
    roster.keep(End("i-2", 1_200.0, "interrupted", taken=True))
    assert instance_usages(roster) == [
        InstanceUsage("m", "a", 100.0, 1_100.0, False, 0.5, id="i-1", worker="w1"),
        InstanceUsage("m", "a", 200.0, 1_200.0, True, 0.5, id="i-2", worker="w2"),
        InstanceUsage("m", "a", 300.0, None, False, 0.5, id="i-3", worker="w3"),
    ]


def test_a_later_master_counts_what_was_spent_before(roster: Roster, tmp_path: Path) -> None:
    roster.keep(Instance("i-1", "w1", "m", "a", 0.0, 0.5))
    roster.keep(End("i-1", 3_600.0, "shut down"))
    roster.keep(Instance("i-2", "w2", "m", "a", 3_600.0, 0.5))
    save_prices(tmp_path, {"m/a": [(0.0, 0.1), (3_600.0, 0.2)]})
    assert spent(instance_usages(Roster(tmp_path)), saved_prices(tmp_path), 7_200.0) == pytest.approx(0.3)


def test_prices_come_back_as_they_were_kept(roster: Roster, tmp_path: Path) -> None:
    assert saved_prices(tmp_path) == {}
    save_prices(tmp_path, {"m/a": [(1.0, 0.25)]})
    save_prices(tmp_path, {"m/a": [(1.0, 0.25), (2.5, 0.5)]})
    assert saved_prices(tmp_path) == {"m/a": [[1.0, 0.25], [2.5, 0.5]]}
    assert roster.ids() == [], "prices are no instance"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"m/a": []}', '{"m/a": [[1, -1]]}', '{"m/a": [[2, 1], [1, 1]]}', '{"m/a": [[1]]}', '{"m/a": 1}'],
)
def test_damaged_prices_are_named(roster: Roster, tmp_path: Path, text: str) -> None:
    (tmp_path / "fleet" / "prices.json").write_text(text)
    with pytest.raises(LedgerError, match=r"prices\.json is damaged .* full prices"):
        saved_prices(tmp_path)
