"""Who may enrol: a machine that shows a genuine document of an instance that the fleet launched, once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.decisions.enrolment import LAUNCH_S, Identity, Launched, Request, Verdict, on_request

FLEET = ("123", "eu-north-1", "ami-1")
IDENTITY = Identity(*FLEET, "i-7", 1000.0)
HONEST = Request("key", True, True, IDENTITY, Launched(1000.0))


@pytest.mark.parametrize(
    ("request_", "verdict", "reason"),
    [
        (HONEST, Verdict.ENROL, "is of this fleet"),
        (replace(HONEST, launched=Launched(1000.0, "key")), Verdict.ENROL, "with this key before"),
        (replace(HONEST, launched=Launched(1000.0, "other")), Verdict.REFUSE, "with another key"),
        (replace(HONEST, token_fits=False), Verdict.REFUSE, "token"),
        (replace(HONEST, signature_fits=False), Verdict.REFUSE, "signature"),
        (replace(HONEST, identity=None, launched=None), Verdict.REFUSE, "does not say who"),
        (replace(HONEST, identity=replace(IDENTITY, account="1")), Verdict.REFUSE, "account '1'"),
        (replace(HONEST, identity=replace(IDENTITY, region="r")), Verdict.REFUSE, "region 'r'"),
        (replace(HONEST, identity=replace(IDENTITY, image="ami-2")), Verdict.REFUSE, "image 'ami-2'"),
        (replace(HONEST, launched=None), Verdict.WAIT, "not yet"),
        (replace(HONEST, launched=Launched(1000.0, "key", ended=True)), Verdict.REFUSE, "has ended"),
        (replace(HONEST, launched=Launched(1000.0, "key", evicted=True)), Verdict.REFUSE, "taken away"),
        (replace(HONEST, launched=Launched(1001.0 + LAUNCH_S)), Verdict.REFUSE, "s older"),
        (replace(HONEST, launched=Launched(999.0 - LAUNCH_S)), Verdict.REFUSE, "s newer"),
        (replace(HONEST, identity=replace(IDENTITY, launched_s=float("nan"))), Verdict.REFUSE, "than the launch"),
    ],
)
def test_each_request_is_answered_with_a_reason(request_: Request, verdict: Verdict, reason: str) -> None:
    found, why = on_request(request_, *FLEET)
    assert found is verdict and reason in why


IDENTITIES = st.builds(
    Identity,
    st.sampled_from(["123", "124"]),
    st.sampled_from(["eu-north-1", "us-east-1"]),
    st.sampled_from(["ami-1", "ami-2"]),
    st.just("i-7"),
    st.floats(0, 4000),
)
INSTANCES = st.builds(
    Launched, st.floats(0, 4000), st.sampled_from([None, "key", "other"]), ended=st.booleans(), evicted=st.booleans()
)
REQUESTS = st.builds(
    Request, st.just("key"), st.booleans(), st.booleans(), st.none() | IDENTITIES, st.none() | INSTANCES
)


@given(REQUESTS)
def test_nobody_enrols_whom_any_fact_speaks_against(request_: Request) -> None:
    verdict, why = on_request(request_, *FLEET)
    identity, launched = request_.identity, request_.launched
    right = request_.token_fits and request_.signature_fits and identity is not None
    right = right and (identity.account, identity.region, identity.image) == FLEET
    fits = launched is not None and not launched.ended and not launched.evicted
    fits = fits and launched.public_key in (None, "key")
    fits = fits and identity is not None and abs(identity.launched_s - launched.launched_s) <= LAUNCH_S
    expected = Verdict.ENROL if right and fits else Verdict.WAIT if right and launched is None else Verdict.REFUSE
    assert verdict is expected and why
