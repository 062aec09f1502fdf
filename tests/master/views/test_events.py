"""Events for programs: every output has the facts that docs/events.md documents."""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.errors import LedgerError
from master.backends.script import Script, ScriptedLives
from master.launch import start
from master.ports.environment import Environment
from master.simulation import cost_only_worker
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.world import play_scenario
from master.store.ledger import Ledger
from master.store.reader import opened
from master.store.rundir import MAX_PARTS, MAX_TEXT_CHARS, EventFacts, bounded, facts_from, facts_text
from master.store.settings import Settings
from master.views.live import EventLines
from master.views.terminal import follow

ROOT = Path(__file__).resolve().parents[3]
PLACE = {"worker", "machine"}
ENDED = {*PLACE, "cause", "exit_code", "graceful", "cancelled", "lived_s"}
STRIKES = {*PLACE, "failures", "distrusted", "avoided_s"}
STOPPED = {*PLACE, "cause"}
LEASE = {"worker", "lease", "epoch", "left"}
PROMISED: dict[str, set[str]] = {
    "started": {"run_dir", "workers", "vertices"},
    "resumed": {"credited", "total", "workers"},
    "finished": {"vertices", "epochs", "run_s"},
    "epoch": {"epoch", "version", "vertices", "epoch_s"},
    "metrics": {"epoch", "metrics", "versions"},
    "evaluate": {"epoch"},
    "best": {"epoch", "version", "goal", "value"},
    "stopping": {"epochs", "reason"},
    "totals": {"epoch", "totals"},
    "ticks": {"slack", "parts", "ticks", "size"},
    "submitted": {"workers", "first", "last", "present", "asked"},
    "running": PLACE,
    **dict.fromkeys(("evicted", "lost"), ENDED),
    **dict.fromkeys(("held", "suspended", "out of reach"), STOPPED),
    "relieved": {*PLACE, "suspended_s"},
    "headway": {"cause", "lives", "idle_s"},
    **dict.fromkeys(("silent", "stuck", "replaced", "given up", "quarantine", "avoided"), STRIKES),
    "device": {*PLACE, "in_a_row"},
    "failure": {*PLACE, "lease", "epoch", "start", "stop"},
    "dismissed": {"workers", "names", "wanted"},
    "asked": {"workers", "wanted"},
    "training": {
        "workers",
        "batch",
        "program_batch",
        "accumulate",
        "added",
        "rate_factor",
        "program_rates",
        "schedule",
    },
    "averaged": {"workers", "ways"},
    "scaled": {"workers", "before"},
    "settings": {"now", "before"},
    "sizing": {"sizes"},
    **dict.fromkeys(("cut", "straggler"), LEASE),
    "shortened": {"worker", "lease"},
    "left out": {"worker", "lease", "pushes"},
    "late": {"worker", "lease", "vertices"},
    "spot check": {"epoch", "start", "stop", "pushed", "repeated", "odd"},
    "rollback": {"version", "vertices"},
    "first values": {"source", "taken", "tensors"},
    "placing": {"vertices", "edges", "parts"},
    "placement": {
        *("method", "parts", "sections", "edges", "place_s", "bytes", "placed_bytes", "chance_bytes", "order_bytes"),
        *("ghosts", "chance_ghosts", "order_ghosts"),
    },
}
COUNT, EPOCHS, BATCH = 400, 2, 10
PROGRAM = f"""
import time

import numpy as np

import gridml


class Total(gridml.Vertex):
    count = gridml.array("int64")
    aggregate = gridml.add()


class Document(gridml.Vertex):
    number = gridml.array("int64")
    total = gridml.edge(Total)


@gridml.update(batch={BATCH})
def train(documents: gridml.Batch[Document], total: gridml.Batch[Total]) -> None:
    time.sleep(0.05)
    np.add.at(total.count, documents.total.index, 1)


def graph() -> gridml.Graph:
    g = gridml.Graph()
    total = g.add(Total, count=np.zeros(1, np.int64))
    g.add(Document, number=np.arange({COUNT}), total=total)
    return g


def evaluate(total: gridml.Batch[Total]) -> dict[str, object]:
    return {{"counted": int(total.count.sum()), "nothing": float("nan"), "each": [1.0, 2.0]}}


program = gridml.Program(graph, train, evaluate, epochs={EPOCHS})
"""


def check(events: list[tuple[str, EventFacts]]) -> set[str]:
    """Check events against their documentation; return their topics."""
    for topic, facts in events:
        if topic != "warning":
            assert set(facts) == PROMISED[topic], topic
    return {topic for topic, _ in events}


def kept(root: Path) -> list[tuple[str, EventFacts]]:
    """Return the events of a ledger."""
    with opened(root) as ledger:
        rows = ledger.execute("SELECT topic, facts FROM events ORDER BY rowid").fetchall()
    return [(topic, facts_from(facts)) for topic, facts in rows]


def printed(lines: str) -> list[tuple[str, EventFacts]]:
    """Return events as a program reads them."""
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines.splitlines()]
    return [(line["topic"], line["facts"]) for line in found if "text" in line]


def test_the_documentation_promises_what_is_checked() -> None:
    rows = re.findall(r"^\| (`.+?) \| (.+) \|$", (ROOT / "docs" / "events.md").read_text(encoding="utf-8"), re.M)
    for topics, facts in rows:
        for topic in re.findall(r"`([^`]+)`", topics):
            if topic != "warning":
                assert PROMISED[topic] <= set(re.findall(r"`(\w+)`", facts)), topic
    documented = {topic for topics, _ in rows for topic in re.findall(r"`([^`]+)`", topics)}
    assert documented == {*PROMISED, "warning"}


def topics_in_source() -> Iterator[str]:
    """Yield the topics in the master's code that records or reports events."""
    place = {"event": 1, "record": 0, "report": 0}  # of the topic among the arguments
    for path in sorted((ROOT / "master").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (called := ast.unparse(node.func).rpartition(".")[2]) in place:
                topic = node.args[place[called]] if len(node.args) > place[called] else None
                if isinstance(topic, ast.Constant) and isinstance(topic.value, str):
                    yield topic.value


def test_no_topic_is_without_a_promise() -> None:
    assert len({*topics_in_source()}) > 15
    assert {*topics_in_source()} <= {*PROMISED, "warning"}


def test_events_of_a_simulated_run_are_recorded_and_reported_with_their_facts(tmp_path: Path) -> None:
    """Events are complete through evictions, hostile messages and masters that die."""
    reported: list[tuple[str, EventFacts]] = []
    program, root, workers = tmp_path / "costs.py", tmp_path / "run", 12
    program.write_text(cost_only_worker.source(1200, EPOCHS))
    scenario = Scenario(
        ScriptedLives(workers, Exponential(60.0), seed=3, gap_s=5.0, grace_s=10.0),
        Costs(exec_s=0.5, start_s=2.0, push_s=0.1, boot_s=1.0),
        MachineSpeeds(0.2, 4.0, 0.4),
        crash_every_s=60.0,
        turn_s=0.5,
        limit_s=1e5,
        seed=3,
        hostile=0.2,
    )
    settings = Settings(program, backend="simulated", workers=workers)
    play_scenario(settings, scenario, root, lambda topic, text, facts: reported.append((topic, bounded(facts))))
    written = kept(root)
    topics = check(written)
    assert {"submitted", "running", "evicted", "resumed", "given up", "sizing", "epoch", "finished"} <= topics
    assert check(reported) <= topics
    assert [event for event in reported if event not in written] == []  # by masters that died before they committed
    evicted = [facts for topic, facts in reported if topic == "evicted"]
    assert all(0 <= facts["lived_s"] < 1e4 and facts["worker"].startswith("w") for facts in evicted)


@pytest.mark.real
def test_who_drives_a_run_and_who_follows_it_print_the_same_facts(
    tmp_path: Path, pool: Callable[[Script | None], Environment], capfd: pytest.CaptureFixture[str]
) -> None:
    program, root, out = tmp_path / "counting.py", tmp_path / "run", io.StringIO()
    program.write_text(PROGRAM)
    view = EventLines(out)
    environment = replace(
        pool(ScriptedLives(2, Exponential(1.5), seed=1, gap_s=0.0, grace_s=1.0)),
        report=lambda topic, text, facts: view.event(0.0, topic, text, facts),
    )
    with start(Settings(program, workers=2), root, environment) as run:
        run.finish()
    driven = printed(out.getvalue())
    assert {"running", "evicted", "epoch", "metrics", "finished"} <= check(driven)
    metrics = [facts for topic, facts in driven if topic == "metrics"]
    assert metrics[-1] == {"epoch": EPOCHS, "metrics": {"counted": COUNT * EPOCHS, "nothing": None}, "versions": 1}
    ended = next(facts for topic, facts in driven if topic == "evicted")
    assert ended["machine"].startswith("slot-") and ended["exit_code"] is not None and ended["lived_s"] > 0
    capfd.readouterr()
    follow(root, as_json=True)
    followed = printed(capfd.readouterr().out)
    assert followed == kept(root)[-10:] and check(followed)
    both = check(driven) & check(kept(root))
    assert [event for event in kept(root) if event[0] in both] == [event for event in driven if event[0] in both]


def test_facts_are_bounded_print_and_are_json_whatever_is_in_them() -> None:
    facts: dict[str, Any] = {
        "loss": float("nan"),
        "each": {"most": float("inf"), "\x1b[2J": "\x1b[31m\ud800"},
        "long": "x" * 10_000,
        "list": list(range(1000)),
        "path": Path("a"),
        "yes": True,
    }
    shown = json.loads(facts_text(facts), parse_constant=pytest.fail)
    assert shown == bounded(facts) == bounded(shown)
    assert shown["loss"] is None and shown["each"] == {"most": None, r"\x1b[2J": r"\x1b[31m\ud800"}
    assert len(shown["long"]) <= MAX_TEXT_CHARS and shown["list"] == list(range(MAX_PARTS))
    assert (shown["path"], shown["yes"]) == ("a", True)
    assert len(bounded({str(name): 0 for name in range(1000)})) == MAX_PARTS


def test_an_event_without_facts_has_none(tmp_path: Path) -> None:
    ledger, out = Ledger(tmp_path / "ledger.db", shared_disk=False, create=True), io.StringIO()
    with ledger.transaction():
        ledger.event(1.0, "warning", "a full disk")
    ledger.close()
    EventLines(out).event(1.0, "warning", "a full disk")
    assert kept(tmp_path) == printed(out.getvalue()) == [("warning", {})]


@pytest.mark.parametrize("facts", ["", "[1]", "{"])
def test_facts_that_no_master_writes_are_an_error_for_people(tmp_path: Path, facts: str) -> None:
    ledger = Ledger(tmp_path / "ledger.db", shared_disk=False, create=True)
    with ledger.transaction():
        ledger._db.execute("INSERT INTO events VALUES (1.0, 'warning', 'x', ?)", (facts,))
    ledger.close()
    with pytest.raises(LedgerError, match="holds what no master of gridml writes"):
        follow(tmp_path, as_json=True)
