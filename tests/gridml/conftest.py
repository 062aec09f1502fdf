"""Settings of the property tests below this folder, and programs around one stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.stage_programs import EDGE, PROGRAM, TYPES, Write, stage_text

# A shared machine is slow now and then, which is no defect of the tested code.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes a program around the body of a stage, and returns its path."""

    def written(
        body: str, signature: str = EDGE, decorator: str = "exchange(over=User)", before: str = "", **options: Any
    ) -> Path:
        stages = {"stages": "stage", "exact": True, **options}
        text = TYPES + before + stage_text(body, signature, decorator) + PROGRAM.format(**stages)
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return written
