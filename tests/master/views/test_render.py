"""Of many machines the report lists those that were taken away most, and the others in one line."""

from __future__ import annotations

import io

from rich.console import Console

from master.views.render import MACHINES, _machine_table
from master.views.report import Report
from master.views.report_parts import MachineReport


def shown(machines: list[MachineReport]) -> list[list[str]]:
    report = Report.__new__(Report)
    object.__setattr__(report, "machines", machines)
    file = io.StringIO()
    Console(file=file, width=100).print(_machine_table(report))
    return [line.split() for line in file.getvalue().splitlines()[3:]]


def test_a_few_machines_are_all_there() -> None:
    rows = shown([MachineReport("a", 2, 1, 0), MachineReport("b", 1, 0, 0)])
    assert rows == [["a", "2", "1", "0"], ["b", "1", "0", "0"]]


def test_of_many_the_worst() -> None:
    machines = [MachineReport(f"m{i}", i + 1, i // 2, i - i // 2) for i in range(MACHINES + 3)]
    rows = shown(machines)
    assert len(rows) == MACHINES + 1
    assert rows[0] == ["m22", "23", "11", "11"]
    assert rows[-1] == ["3", "others", "6", "1", "2"]
    total = sum(int(row[-3]) for row in rows)
    assert total == sum(m.workers for m in machines)
