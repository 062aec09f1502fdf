"""Hostile messages of simulated workers: drawn from a seed, counted, and read by the real codec."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chunk_model.goodput import Costs
from gridml.errors import UsageError
from gridml.protocol.messages import Push, Sync
from gridml.protocol.push import NOTHING, MalformedPush, in_process_payload
from master.backends.script import Steady
from master.simulation.cost_only_worker import WireCodec
from master.simulation.scenario import MachineSpeeds, Scenario
from master.simulation.workers import FIELDS, Hostility, alter, altered, nonsense

HONEST = in_process_payload(Sync("w1", push=Push(1, 1, 1, 0, 10, 10)))


def test_hostile_messages_are_bytes_drawn_from_the_seed_and_their_values_are_counted() -> None:
    def draw(seed: int) -> tuple[list[tuple[int, bytes]], int]:
        hostility = Hostility(seed)
        return [sent for n in range(200) for sent in hostility.messages(n, HONEST)], hostility.values

    (sent, values), again, other = draw(1), draw(1), draw(2)
    assert (sent, values) == again != other
    assert 100 < len(sent) < values
    assert all(type(payload) is bytes and number >= 0 for number, payload in sent)


def test_every_field_gets_values_of_its_own_type_and_of_others_and_is_missing_at_times() -> None:
    rng, types, missing, added = random.Random(1), {path: set[str]() for path in FIELDS}, set[Any](), 0
    for _ in range(6_000):
        message = alter(Sync("w1", push=Push(1, 1, 1, 1, 1, 1)), rng, 3)
        added += bool(message.keys() - {path[0] for path in FIELDS})
        for path in FIELDS:
            part: Any = message if len(path) == 1 else message.get(path[0])
            if not isinstance(part, dict):
                continue
            if path[-1] in part:
                types[path].add(type(part[path[-1]]).__name__)
            else:
                missing.add(path)
    assert added
    assert missing == FIELDS.keys()
    assert all(len(seen) >= 4 for seen in types.values()), types


def test_values_are_drawn_from_the_seed() -> None:
    def draw(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        return [altered(Sync("w1"), rng, 2) for _ in range(50)] + [nonsense(rng)]

    assert draw(1) == draw(1) != draw(2)


def test_objects_are_handed_over_and_bytes_pass_the_real_codec() -> None:
    codec, taken, refused = WireCodec(), 0, 0
    assert codec.read(HONEST) == (HONEST.message, NOTHING)
    hostility = Hostility(3)
    for number in range(500):
        for _, payload in hostility.messages(number, HONEST):
            try:
                sync, _ = codec.read(payload)
                taken += isinstance(sync, Sync)
            except (ValueError, MalformedPush):
                refused += 1
    assert taken > 10 and refused > 500  # some lies are well-formed


def test_a_hostile_heartbeat_fits_its_file() -> None:
    hostility = Hostility(1)
    beats = {hostility.heartbeat(3, 40) for _ in range(500)}
    assert (3, 40) in beats and len(beats) > 5
    assert all(-(2**63) <= number < 2**63 for beat in beats for number in beat)


def test_a_share_of_the_machines_is_hostile_in_every_life() -> None:
    scenario = Scenario(Steady(400), Costs(exec_s=1.0), MachineSpeeds(sigma=0.1), hostile=0.25)
    hostile = [scenario.machine(slot).hostile for slot in range(400)]
    assert 60 < sum(hostile) < 140
    assert hostile == [scenario.machine(slot).hostile for slot in range(400)]
    assert not any(Scenario(Steady(9), Costs(exec_s=1.0)).machine(slot).hostile for slot in range(9))
    with pytest.raises(UsageError, match=r"1\.5 of the machines"):
        Scenario(Steady(1), Costs(exec_s=1.0), hostile=1.5)
