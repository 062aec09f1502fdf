"""Every pair of adjacent colours of a page has the contrast of WCAG 2.2 AA, in both schemes."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = files("master.views.page").joinpath("page.css").read_text("utf-8")
TEXT, GRAPHIC = 4.5, 3.0  # least contrasts of text (1.4.3), and of graphics and edges of controls (1.4.11)
TEXTS = ("text", "quiet", "good", "bad", "focus")
GRAPHICS = ("series-1", "series-2", "series-3", "edge", "focus")
PAIRS = [
    *((name, ground, TEXT) for name in TEXTS for ground in ("ground", "raised")),
    *((name, ground, GRAPHIC) for name in GRAPHICS for ground in ("ground", "raised")),
    *((name, "chosen", TEXT) for name in ("text", "quiet", "good", "bad")),
]


def schemes() -> dict[str, dict[str, str]]:
    """Return the colours of the light scheme, and those of the dark one."""
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in re.findall(r":root {(.*?)}", CSS, re.S)
    )
    return {"light": light, "dark": dark}


def luminance(colour: str) -> float:
    """The relative luminance of a colour such as #1b1f24, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_the_reckoning_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("colour", "ground", "least"), PAIRS)
def test_colours_stand_out(scheme: str, colour: str, ground: str, least: float) -> None:
    colours = schemes()[scheme]
    assert contrast(colours[colour], colours[ground]) >= least


def test_no_colour_is_named_outside_the_schemes() -> None:
    rules = re.sub(r":root {.*?}", "", CSS, flags=re.S)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?=\s*[;,)])|rgb\(|hsl\(", rules) == []
    assert schemes()["light"].keys() == schemes()["dark"].keys()
