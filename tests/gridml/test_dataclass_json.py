"""Settings survive a round trip through JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridml import dataclass_json


@dataclass(frozen=True)
class Plain:
    count: int = 0
    share: float = 0.5
    word: Annotated[str | None, "said of it"] = None
    file: Path | None = None
    files: Annotated[tuple[Path, ...], "said of it"] = ()
    words: tuple[str, ...] = ()
    on: bool = False


paths = st.text("abc./ ", min_size=1).map(Path)


@given(
    st.builds(
        Plain,
        count=st.integers(),
        share=st.floats(allow_nan=False, allow_infinity=False),
        word=st.none() | st.text(),
        file=st.none() | paths,
        files=st.lists(paths).map(tuple),
        words=st.lists(st.text()).map(tuple),
        on=st.booleans(),
    )
)
def test_every_field_comes_back(plain: Plain) -> None:
    values = json.loads(json.dumps(dataclass_json.to_json(plain)))
    assert dataclass_json.from_json(Plain, values) == plain


def test_a_field_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        dataclass_json.from_json(Plain, {"colour": "red"})
