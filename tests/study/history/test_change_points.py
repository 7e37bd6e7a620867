"""Change points: what recorded series changed is found with its interval, and nothing where nothing did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.changing import NOISES
from loadgen.study.history.change_points import LEAST_RUNS, MOST_RUNS, find_changes
from loadgen.study.history.history_command import read_history

RECORDED = Path(__file__).parents[2] / "data" / "histories"
CLOSE = 2  # runs
_SERIES = 100  # simulated of each length; benchmarks/changing.py has more
ALPHA = 0.05 / 4  # of each of four metrics, as the command has it


def recorded(name: str) -> list[float]:
    values: list[float] = json.loads((RECORDED / f"{name}.json").read_text())
    return values


def throughputs(name: str) -> list[float]:
    return [entry.figures["output_throughput"] for entry in read_history(RECORDED / f"{name}.jsonl")]


def test_the_known_changes_of_a_recorded_series_are_found() -> None:
    points = find_changes(recorded("tigerbeetle"), ALPHA).points
    assert [point.at for point in points] == [15, 61, 71, 95]
    for point, known in zip(points, (16, 61, 71, 97), strict=True):
        assert abs(point.at - known) <= CLOSE
        assert point.low <= point.at <= point.high <= point.low + 2 * CLOSE
    assert [round(point.ratio, 2) for point in points] == [0.89, 1.03, 1.16, 0.96]
    for runs in (18, 20):  # three runs after the first
        assert [point.at for point in find_changes(recorded("tigerbeetle")[:runs]).points] == [15]


def test_a_slower_engine_of_ours_is_found_in_the_run_that_changed() -> None:
    (point,) = find_changes(throughputs("slower"), ALPHA).points
    assert abs(point.at - 18) <= CLOSE
    assert point.low <= 18 <= point.high
    assert point.ratio == pytest.approx(8.0 / 8.4, rel=0.01)


@pytest.mark.parametrize(
    "series",
    [
        recorded("mongodb"),
        *(recorded("tigerbeetle")[begin:end] for begin, end in ((15, 61), (71, 95), (0, 15))),
        *(throughputs("slower")[begin:end] for begin, end in ((0, 18), (18, None))),
        throughputs("same"),
    ],
    ids=["mongodb", "to-61", "to-95", "to-15", "before", "after", "same"],
)
def test_a_recorded_series_without_a_change_has_none(series: list[float]) -> None:
    changes = find_changes(series, ALPHA)
    assert changes.points == ()
    assert list(changes.levels) == pytest.approx([float(np.median(series))], rel=1e-4)


@pytest.mark.parametrize(
    ("series", "at"),
    [
        ([], []),
        ([1.0] * (LEAST_RUNS - 1), []),
        ([1.0] * 30, []),
        ([1.0] * 10 + [2.0] * 10, [10]),
        ([1.0, 1.01, 0.99, 1.0] * 5 + [2.0, 2.01] * 2 + [1.0, 1.01, 0.99, 1.0] * 5, [20, 24]),
        ([1.0, 1.01, 0.99, 1.0] * 5 + [9.0] + [1.0, 1.01, 0.99, 1.0] * 5, []),
    ],
    ids=["empty", "few", "equal", "step", "bump", "one-slow"],
)
def test_plain_series(series: list[float], at: list[int]) -> None:
    assert [point.at for point in find_changes(series).points] == at


def test_of_a_long_series_the_newest_are_examined() -> None:
    noise = np.random.default_rng(1).normal(size=MOST_RUNS + 100)
    series = np.exp(0.01 * noise + 0.1 * (np.arange(MOST_RUNS + 100) >= MOST_RUNS))
    changes = find_changes(series.tolist())
    assert changes.begin == 100
    assert [point.at for point in changes.points] == [MOST_RUNS]


@pytest.mark.long
@pytest.mark.parametrize("runs", [10, 20, 40])
def test_changes_are_false_at_alpha_and_intervals_cover(runs: int) -> None:
    false = covered = found = 0
    for seed in range(_SERIES):
        noise = np.random.default_rng(seed).normal(size=runs)
        false += bool(find_changes(np.exp(0.01 * noise).tolist()).points)
        step = np.arange(runs) >= runs // 2
        points = find_changes(np.exp(0.01 * noise + 0.03 * step).tolist()).points
        found += len(points) == 1
        covered += len(points) == 1 and points[0].low <= runs // 2 <= points[0].high
    assert false <= _SERIES * 0.05 + 3 * (_SERIES * 0.05 * 0.95) ** 0.5
    assert covered >= 0.92 * found


@pytest.mark.long
@pytest.mark.parametrize("noise", ["correlated, 0.6", "four times as wide from half on"])
def test_neither_likeness_nor_width_is_a_change(noise: str) -> None:
    draws = (np.random.default_rng(seed) for seed in range(_SERIES))
    false = sum(bool(find_changes(np.exp(0.01 * NOISES[noise](draw, 40)).tolist()).points) for draw in draws)
    assert false <= _SERIES * 0.07 + 2 * (_SERIES * 0.07 * 0.93) ** 0.5


def test_a_wider_half_and_a_drifting_series_have_no_change() -> None:
    for noise in ("correlated, 0.6", "four times as wide from half on"):
        draws = (np.random.default_rng(seed) for seed in range(6))
        found = [find_changes(np.exp(0.01 * NOISES[noise](draw, 30)).tolist()).points for draw in draws]
        assert sum(map(bool, found)) <= 1
