"""Group sequential levels: published boundaries, the error that they make, and how they spend alpha."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from builders.loops import loop_over
from loadgen.study.gate import gate_verdict
from loadgen.study.gate.gate_verdict import FIRST_LOOK, find_levels, find_look_levels, spend_alpha


def spend_as_obrien_fleming(alpha: float, shares: Any) -> Any:
    return 2 * special.ndtr(special.ndtri(alpha / 2) / np.sqrt(shares))


def spend_as_pocock(alpha: float, shares: Any) -> Any:
    return alpha * np.log1p((np.e - 1) * shares)


@pytest.mark.long
@pytest.mark.parametrize(
    ("spend", "published"),
    [
        (spend_as_obrien_fleming, [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
        (spend_as_pocock, [2.4380, 2.4268, 2.4101, 2.3966, 2.3859]),
    ],
)
def test_many_pairs_have_the_published_boundaries(
    spend: Callable[[float, Any], Any], published: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of R's ldbounds and gsDesign: Lan and DeMets, known variance, five looks, one-sided 0.025."""
    monkeypatch.setattr(gate_verdict, "_CELLS", 160)
    shares = np.arange(1, 6) / 5
    levels = find_levels(spend(0.025, shares), (300 * shares).astype(int).tolist())
    assert -special.ndtri(levels) == pytest.approx(
        published, abs=0.005
    )  # 300 pairs are not yet a known variance


def count_rejections(levels: tuple[float, ...], looks: range, gates: int) -> float:
    differences = np.random.default_rng(7).normal(size=(gates, looks[-1]))
    rejected = np.zeros(gates, bool)
    for level, pairs in zip(levels, looks, strict=True):
        made = differences[:, :pairs]
        t = made.mean(-1) / made.std(-1, ddof=1) * np.sqrt(pairs)
        rejected |= special.stdtr(pairs - 1, -t) <= level
    return float(rejected.mean())


@loop_over(("alpha", "most"), [(0.05, 3), (0.05, 4), (0.05, 8), (0.2, 8), (0.025, 15)])
def test_alpha_is_the_error_of_t_tests_from_three_pairs_on(alpha: float, most: int) -> None:
    gates = 20_000
    error = count_rejections(find_look_levels(alpha, most), range(FIRST_LOOK, most + 1), gates)
    assert error == pytest.approx(alpha, abs=3.5 * np.sqrt(alpha / gates))


def test_alpha_is_spent_by_the_power_of_the_share() -> None:
    assert spend_alpha(0.05, [0.25, 1.0]) == pytest.approx([0.00625, 0.05])
    levels = find_look_levels(0.05, 30)
    assert len(levels) == 28
    assert levels[0] == pytest.approx(0.05 * 0.1**1.5)
    assert sum(levels) > 0.05 > max(levels)


def test_a_smaller_alpha_has_smaller_levels_at_every_look() -> None:
    """As Holm over rows needs (Maurer and Bretz 2013)."""
    assert (np.diff([find_look_levels(0.05 / rows, 12) for rows in (4, 2, 1)], axis=0) > 0).all()


def test_a_look_that_spends_nothing_never_rejects() -> None:
    assert find_levels([0.01, 0.01, 0.05], [3, 4, 5])[1] == 0
    assert find_levels([0.01, 0.05], [3, 5]) == find_levels([0.01, 0.01, 0.05], [3, 4, 5])[::2]
