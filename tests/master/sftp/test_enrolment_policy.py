"""The decision to enrol: a machine with a genuine document of an instance that the fleet launched, once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.sftp.identity import (
    LAUNCH_S,
    EnrolmentRequest,
    EnrolmentVerdict,
    Launched,
    ProvenIdentity,
    decide_enrolment,
)

FLEET = ("123", "eu-north-1", "ami-1")
IDENTITY = ProvenIdentity(*FLEET, "i-7", 1000.0)
HONEST = EnrolmentRequest("key", True, True, IDENTITY, Launched(1000.0))


@pytest.mark.parametrize(
    ("request_", "verdict", "reason"),
    [
        (HONEST, EnrolmentVerdict.ENROL, "is of this fleet"),
        (replace(HONEST, launched=Launched(1000.0, "key")), EnrolmentVerdict.ENROL, "with this key before"),
        (replace(HONEST, launched=Launched(1000.0, "other")), EnrolmentVerdict.REFUSE, "with another key"),
        (replace(HONEST, is_token_valid=False), EnrolmentVerdict.REFUSE, "token"),
        (replace(HONEST, is_signature_valid=False), EnrolmentVerdict.REFUSE, "signature"),
        (replace(HONEST, identity=None, launched=None), EnrolmentVerdict.REFUSE, "names no instance"),
        (replace(HONEST, identity=replace(IDENTITY, account="1")), EnrolmentVerdict.REFUSE, "account '1'"),
        (replace(HONEST, identity=replace(IDENTITY, region="r")), EnrolmentVerdict.REFUSE, "region 'r'"),
        (replace(HONEST, identity=replace(IDENTITY, image="ami-2")), EnrolmentVerdict.REFUSE, "image 'ami-2'"),
        (replace(HONEST, launched=None), EnrolmentVerdict.WAIT, "not yet"),
        (replace(HONEST, launched=Launched(1000.0, "key", ended=True)), EnrolmentVerdict.REFUSE, "has ended"),
        (replace(HONEST, launched=Launched(1000.0, "key", evicted=True)), EnrolmentVerdict.REFUSE, "being reclaimed"),
        (replace(HONEST, launched=Launched(1001.0 + LAUNCH_S)), EnrolmentVerdict.REFUSE, "s older"),
        (replace(HONEST, launched=Launched(999.0 - LAUNCH_S)), EnrolmentVerdict.REFUSE, "s newer"),
        (
            replace(HONEST, identity=replace(IDENTITY, launched_s=float("nan"))),
            EnrolmentVerdict.REFUSE,
            "than the launch",
        ),
    ],
)
def test_each_request_is_answered_with_a_reason(
    request_: EnrolmentRequest, verdict: EnrolmentVerdict, reason: str
) -> None:
    found, why = decide_enrolment(request_, *FLEET)
    assert found is verdict and reason in why


IDENTITIES = st.builds(
    ProvenIdentity,
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
    EnrolmentRequest, st.just("key"), st.booleans(), st.booleans(), st.none() | IDENTITIES, st.none() | INSTANCES
)


@given(REQUESTS)
def test_any_contradicting_fact_prevents_enrolment(request_: EnrolmentRequest) -> None:
    verdict, why = decide_enrolment(request_, *FLEET)
    identity, launched = request_.identity, request_.launched
    right = request_.is_token_valid and request_.is_signature_valid and identity is not None
    right = right and (identity.account, identity.region, identity.image) == FLEET
    fits = launched is not None and not launched.ended and not launched.evicted
    fits = fits and launched.public_key in (None, "key")
    fits = fits and identity is not None and abs(identity.launched_s - launched.launched_s) <= LAUNCH_S
    expected = (
        EnrolmentVerdict.ENROL
        if right and fits
        else EnrolmentVerdict.WAIT
        if right and launched is None
        else EnrolmentVerdict.REFUSE
    )
    assert verdict is expected and why
