"""Qualities with given figures, and rows of comparisons that have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from builders.comparison_samples import cells
from loadgen.features.quality.quality_record import FORWARD, KlDivergence, MeanInterval, Quality
from loadgen.study.arm_qualities import ITSELF, read_arm_quality
from loadgen.study.run_summary import Reported


def interval(mean: float, half: float) -> MeanInterval:
    """A mean and its interval."""
    return MeanInterval(mean=mean, low=mean - half, high=mean + half)


def quality(kl: float, half: float, **keys: Any) -> Quality:
    """A candidate's quality, with a KL divergence of 20,000 tokens."""
    ends = interval(kl, half).model_dump()
    divergence = KlDivergence(
        **ends, tokens=20_000, answers=320, direction=FORWARD, self_check=interval(1, 0.01)
    )
    figures = {"noise_floor": interval(2e-4, 1e-4), "agreement": interval(0.941, 0.006)}
    return Quality(**{"reference": "bf16", "candidate": "m", "kl": divergence, **figures, **keys})


def reference() -> Quality:
    """The reference's own."""
    why = dict.fromkeys(("kl", "agreement", "perplexity_ratio"), ITSELF)
    return Quality(reference="bf16", candidate="bf16", noise_floor=interval(2e-4, 1e-4), why=why)


def rows(name: str, speeds: Sequence[float], found: Quality | None) -> list[Reported]:
    """A row's runs in a campaign, whose server has this quality."""
    return [replace(run, quality=found) for run in cells(name, speeds)]


def read_qualities(campaign: Path) -> dict[str, Quality]:
    """The quality of each arm of a stored campaign that has one, by the arm's name."""
    arms = json.loads((campaign / "campaign.json").read_text("utf-8"))["arms"]
    pairs = [(arm["checkpoint"], arm["server"]) for arm in arms]
    found = {" on ".join(pair): read_arm_quality(campaign, *pair) for pair in pairs}
    return {name: quality for name, quality in found.items() if quality is not None}
