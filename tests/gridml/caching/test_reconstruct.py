"""Reconstruction of a push on its base: values, steps, and omitted tensors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gridml.caching.master_copy import reconstruct
from gridml.protocol.compression import FORMATS, TensorStep
from gridml.protocol.push import PushContent, ReplicaPart

INT8 = FORMATS["int8"]
KEY = ("Network", 0)
BASE = {
    KEY: {
        "Network/0/m/weight": np.ones((20, 30), np.float32),
        "Network/0/m/bias": np.ones(3, np.float32),
        "Network/0/m/count": np.array(7),
    },
    ("Network", 1): {"Network/1/m/weight": np.ones(2)},
}


def step(name: str, values: NDArray[np.generic]) -> PushContent:
    codes = INT8.pack(values)
    assert codes is not None
    return PushContent(steps={KEY: {name: TensorStep(INT8, codes)}})


def test_values_steps_and_what_was_left_out_make_a_vertex() -> None:
    content = step("Network/0/m/weight", np.full((20, 30), 0.25, np.float32))
    bias = np.zeros(3, np.float32)
    content = PushContent(ReplicaPart({KEY: {"Network/0/m/bias": bias}}), steps=content.steps)
    modules = reconstruct(content, BASE).modules
    assert modules.keys() == {KEY}
    np.testing.assert_allclose(modules[KEY]["Network/0/m/weight"], np.full((20, 30), 1.25))
    assert modules[KEY]["Network/0/m/weight"].dtype == np.float32
    assert modules[KEY]["Network/0/m/bias"] is bias
    assert modules[KEY]["Network/0/m/count"] is BASE[KEY]["Network/0/m/count"]


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("Network/0/m/colour", np.ones(600), "the replica has no tensor Network/0/m/colour"),
        ("Network/0/m/count", np.ones(()), "Network/0/m/count is int64 and comes in int8; expected its value"),
        ("Network/0/m/weight", np.ones(599), r"Network/0/m/weight: a step in int8 is uint8 \(611,\); expected uint8"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(name: str, values: NDArray[np.generic], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        reconstruct(step(name, values), BASE)


def test_a_step_of_a_vertex_that_is_not_there_is_refused() -> None:
    content = PushContent(steps={("Network", 9): step("Network/9/m/w", np.ones(9)).steps[KEY]})
    with pytest.raises(ValueError, match="no tensor Network/9/m/w"):
        reconstruct(content, BASE)
