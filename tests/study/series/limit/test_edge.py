"""The load at which a share of samples crosses what is allowed, and how wide its interval is."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from builders.loops import loop_over
from loadgen.study.series.limit.edge import EdgeFit, EdgePoint, fit_edge


def point(load: float, samples: int, over: int, dispersion: float | None = 1.0) -> EdgePoint:
    """A run whose samples above the limit are spread evenly over ten parts."""
    part = samples // 10
    return EdgePoint(
        load, tuple((part, over * (i + 1) // 10 - over * i // 10) for i in range(10)), dispersion
    )


def fit(points: list[EdgePoint], allowed: float, is_s_shaped: bool = False) -> EdgeFit:
    """The edge, which there is."""
    found = fit_edge(points, allowed, is_s_shaped)
    assert found is not None
    return found


@loop_over("runs", [[], [(8, 0), (9, 5)], [(8, 500), (9, 700)]])  # none, none above, none below
def test_there_is_no_edge_without_a_run_on_each_side(runs: list[tuple[float, int]]) -> None:
    assert fit_edge([point(load, 1000, over) for load, over in runs], 0.01) is None


def test_a_share_that_stays_at_a_third_does_not_move_the_edge() -> None:
    runs = [point(51, 1400, 0), point(52, 1400, 390), point(64, 2100, 620)]
    found = fit([point(4, 1700, 0), point(16, 2500, 0), *runs], 0.01)
    assert 51 <= found.low < found.high <= 52.1


def test_runs_that_contradict_each_other_widen_the_interval() -> None:
    beside = [point(7, 1200, 12), point(9, 1300, 269)]
    alike = fit([*beside, point(8, 1040, 52), point(8, 1040, 52)], 0.05)
    contrary = fit([*beside, point(8, 1040, 76), point(8, 1040, 28)], 0.05)
    assert contrary.width > 3 * alike.width


def test_a_run_far_above_does_not_pull_at_the_edge() -> None:
    """Where all samples are above, the load may be any: it must not put the edge at the lowest bound."""
    runs = [point(0.55, 15_000, 0), point(0.77, 15_000, 1), point(1.09, 20_000, 17_000)]
    near, far = (fit([*runs, point(load, 10_000, 10_000)], 0.5) for load in (1.3, 40))
    assert far.load == pytest.approx(near.load, rel=0.01)
    assert far.high > 1.0


@loop_over("allowed", [0.1, 0.25, 0.5])
def test_a_share_like_a_normal_law_is_fitted_by_its_logit(allowed: float) -> None:
    law = NormalDist()
    at_edge = law.inv_cdf(allowed)
    shares = {load: law.cdf(at_edge + 10 * math.log(load / 40)) for load in (36.0, 38.5, 41.5, 46.0)}
    points = [point(load, 40_000, round(40_000 * share)) for load, share in shares.items()]
    curved, straight = (fit(points, allowed, is_s_shaped=shape) for shape in (True, False))
    assert curved.load == pytest.approx(40, rel=0.005)
    assert abs(curved.load - 40) < abs(straight.load - 40)
    assert curved.slope == pytest.approx(10 * law.pdf(at_edge) / (allowed * (1 - allowed)), rel=0.1)
