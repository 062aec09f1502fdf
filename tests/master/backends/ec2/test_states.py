"""The table from EC2's states and a worker's goodbye to the worker's end."""

from __future__ import annotations

import itertools

import pytest

from master.backends.ec2.states import ENDS, Cause, Goodbye, Stage, end_of
from master.sftp.roster import GoodbyeMessage
from master.state.jobs import State


def test_the_table_knows_every_case() -> None:
    assert set(ENDS) == set(itertools.product(Stage, Cause, Goodbye))


@pytest.mark.parametrize(("stage", "cause", "word"), list(itertools.product(Stage, Cause, Goodbye)))
def test_what_holds_for_every_case(stage: Stage, cause: Cause, word: Goodbye) -> None:
    end = ENDS[stage, cause, word]
    if word is Goodbye.TAKEN or (cause is Cause.TAKEN and (stage is Stage.GONE or word is not Goodbye.NONE)):
        assert end is State.EVICTED  # never FINISHED, with any exit status
    if end is State.FINISHED:
        assert word is Goodbye.DONE
    if word is Goodbye.FAILED:
        assert end in (State.LOST, State.EVICTED)
    assert (end is None) == (stage is Stage.THERE and word is Goodbye.NONE)


@pytest.mark.parametrize(
    ("state", "reason", "goodbye", "end"),
    [
        ("pending", "pending", None, None),
        ("running", "", None, None),
        ("a state that is new", "", None, None),
        ("running", "", GoodbyeMessage("i-1", 0, "", 1.0), State.FINISHED),
        ("running", "", GoodbyeMessage("i-1", 78, "", 1.0), State.LOST),
        ("running", "", GoodbyeMessage("i-1", 0, "", 1.0, evicted=True), State.EVICTED),
        ("shutting-down", "Server.SpotInstanceTermination", None, State.EVICTED),
        ("terminated", "Server.SpotInstanceTermination", GoodbyeMessage("i-1", 0, "", 1.0), State.EVICTED),
        ("terminated", "Client.InstanceInitiatedShutdown", GoodbyeMessage("i-1", 0, "", 1.0), State.FINISHED),
        ("terminated", "Client.InstanceInitiatedShutdown", None, State.LOST),
        ("terminated", "Client.UserInitiatedShutdown", None, State.EVICTED),
        ("terminated", "Server.InternalError", None, State.LOST),
        ("terminated", "a reason that is new", None, State.LOST),
        ("stopped", "Server.SpotInstanceStop", None, State.EVICTED),
    ],
)
def test_what_ec2_says(state: str, reason: str, goodbye: GoodbyeMessage | None, end: State | None) -> None:
    assert end_of(state, reason, goodbye) is end
