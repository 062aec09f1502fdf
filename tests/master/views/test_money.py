"""The cost of a run's instances in its report."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from gridml.errors import LedgerError
from master.sftp.roster import End, FleetFacts, Instance, Roster
from master.sftp.spending import save_prices
from master.store.ledger import Ledger
from master.store.rundir import RunDirectory
from master.store.settings import Settings, write_settings
from master.views.money import read_money, read_spent
from master.views.render import MACHINES, dollars, render_money, render_report
from master.views.report import report

HOUR = 3600.0
FACTS = FleetFacts("run", "0" * 64, "1", "us-east-1", "ami-1", "")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run that has credited 10 vertices of a GFLOP each, and has begun a fleet."""
    root = tmp_path / "run"
    root.mkdir()
    write_settings(RunDirectory(root), Settings(program=root / "digits.py", workers=3))
    ledger = Ledger(root / "ledger.db", shared_disk=False, create=True)
    with ledger.transaction():
        for key, value in {"started_s": 0.0, "status": "finished", "ended_s": HOUR, "total": 10, "masters": 1}.items():
            ledger.set(key, value)
        ledger.set("flops_per_vertex", 1e9)
        ledger.add_version(0, None, 0, 0.0)
        ledger.open_epoch(0, 10, 0.0)
        lease = ledger.lease(ledger.spans[0], 10, "w1", 1.0, "")
        ledger.credit(lease, 10, 1, 0.0, 2.0)
        ledger.end_lease(lease, 2.0, "trained to its end")
    ledger.close()
    return root


def fleet(root: Path, *records: Instance | End) -> None:
    roster = Roster(root)
    roster.create(FACTS)
    for record in records:
        roster.keep(record)


@pytest.fixture
def spent(root: Path) -> Path:
    """Three instances in two markets: one to its end, one taken within its first hour, one that lives still."""
    fleet(
        root,
        Instance("i-1", "w1", "c5.large", "us-east-1a", 0.0, 0.1),
        End("i-1", 2 * HOUR, "the run is finished"),
        Instance("i-2", "w2", "c5.large", "us-east-1b", 0.0, 0.1),
        End("i-2", HOUR / 2, "interrupted", taken=True),
        Instance("i-10", "w10", "c5.large", "us-east-1a", HOUR, 0.1),
    )
    save_prices(root, {"c5.large/us-east-1a": [[0.0, 0.02], [HOUR, 0.04]], "c5.large/us-east-1b": [(0.0, 0.03)]})
    return root


def test_a_run_without_a_fleet_shows_no_costs(root: Path) -> None:
    assert report(root).money is None
    out = io.StringIO()
    Console(file=out, width=80).print(render_report(report(root)))
    assert "\nmoney" not in out.getvalue() and "$" not in out.getvalue()


def test_dollars_by_life_and_by_market(spent: Path) -> None:
    money = report(spent, now=3 * HOUR).money
    assert money is not None
    assert [(life.worker, life.ended, life.taken, life.free) for life in money.lives] == [
        ("w1", True, False, False),
        ("w2", True, True, True),
        ("w10", False, False, False),
    ]
    assert [life.dollars for life in money.lives] == pytest.approx([0.06, 0.0, 0.08])
    assert [(each.zone, each.instances, each.taken, each.free, each.seconds / HOUR) for each in money.markets] == [
        ("us-east-1a", 2, 0, 0, 4.0),
        ("us-east-1b", 1, 1, 1, 0.5),
    ]
    assert money.dollars == pytest.approx(0.14) == sum(each.dollars for each in money.markets)
    assert money.on_demand == pytest.approx(4.5 * 0.1)
    assert money.flop_per_dollar == pytest.approx(10e9 / 0.14)


def test_it_goes_on_while_an_instance_lives(spent: Path) -> None:
    early, late = (read_money(spent, None, now) for now in (2 * HOUR, 3 * HOUR))
    assert early is not None and late is not None
    assert late.dollars - early.dollars == pytest.approx(0.04)
    assert early.flop_per_dollar is None
    assert "1 not known to have ended, billed until now" in late.assumed


def test_what_is_assumed_is_said(root: Path) -> None:
    fleet(
        root,
        Instance("i-1", "w1", "c5.large", "us-east-1a", 0.0, 0.1),
        Instance("i-2", "w2", "c5.large", "us-east-1b", 0.0, 0.1),
        Instance("i-3", "w3", "odd.large", "us-east-1b", 0.0),
    )
    save_prices(root, {"c5.large/us-east-1a": [[60.0, 0.02]]})
    money = read_money(root, None, HOUR)
    assert money is not None
    assert money.assumed[2:] == [
        "the history of c5.large/us-east-1a begins after a launch: its first price before that",
        "c5.large/us-east-1b: no price history: counted at the full price",
        "odd.large/us-east-1b: no price at all: not counted",
    ]
    assert money.dollars == pytest.approx(0.12)
    assert money.on_demand is None, "it is not known for one of them"


def test_a_person_sees_it_in_80_columns(spent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(spent.parent)  # the long path of the test would take the columns
    out = io.StringIO()
    Console(file=out, width=80).print(render_report(report(Path(spent.name), now=3 * HOUR)))
    shown = out.getvalue()
    for expected in ("$0.14 for 3 instances, $0.45 on demand, 71.4 GFLOP", "taken, free", "lives", "us-east-1b"):
        assert expected in shown, f"{expected!r} is not in:\n{shown}"
    assert "…" not in shown, shown
    assert report(spent, now=3 * HOUR).to_json()["money"]["lives"][1]["free"] is True


def test_of_many_instances_those_that_cost_most(root: Path) -> None:
    ended = [(Instance(f"i-{n}", f"w{n}", "m", "a", 0.0, 1.0), End(f"i-{n}", n * HOUR, "")) for n in range(1, 31)]
    fleet(root, *(record for pair in ended for record in pair))
    money = read_money(root, None, 99 * HOUR)
    assert money is not None
    out = io.StringIO()
    Console(file=out, width=80).print(render_money(money)[2])
    rows = [line.split() for line in out.getvalue().splitlines() if "$" in line]
    assert len(rows) == MACHINES + 1
    assert rows[0][:2] == ["w30", "i-30"]
    assert rows[-1] == ["10", "others", "55.00", "h", "$55.00"]


def test_damaged_prices_are_named(spent: Path) -> None:
    (spent / "fleet" / "prices.json").write_text("{")
    with pytest.raises(LedgerError, match=r"prices\.json is damaged"):
        report(spent)


@pytest.mark.parametrize(
    ("amount", "text"), [(0.0, "$0.00"), (1234.5, "$1,234.50"), (0.0123456, "$0.0123"), (0.14, "$0.14")]
)
def test_amounts_are_for_reading(amount: float, text: str) -> None:
    assert dollars(amount) == text


def test_what_was_spent_at_a_moment_is_what_was_known_then(spent: Path) -> None:
    money = read_money(spent, None, 3 * HOUR)
    assert money is not None
    # That i-2 is free is only known once it was taken.
    at_s = [-1.0, 0.25 * HOUR, 0.75 * HOUR, 3 * HOUR]
    assert read_spent(spent, at_s) == pytest.approx([0.0, 0.25 * 0.02 + 0.25 * 0.03, 0.75 * 0.02, money.dollars])


def test_a_run_without_instances_spent_nothing_that_is_known(root: Path) -> None:
    assert read_spent(root, [1.0, 2.0]) == []
