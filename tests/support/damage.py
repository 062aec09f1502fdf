"""Damage to payloads on the in-memory network, as required by the contract of carriers."""

from __future__ import annotations

from collections.abc import Callable

from master.simulation.faulty_network import FaultyNetwork


def damage_in_network(network: FaultyNetwork) -> Callable[[bytes, Callable[[bytes], bytes]], None]:
    """Return the `damage` function of the in-memory carrier."""

    def damage(payload: bytes, alter: Callable[[bytes], bytes]) -> None:
        for mailbox in network.mailboxes.values():
            for arrival in mailbox.syncs + mailbox.replies:
                if arrival.payload == payload:
                    arrival.payload = alter(payload)
        network.chunks.update({name: alter(chunk) for name, chunk in network.chunks.items() if chunk == payload})

    return damage
