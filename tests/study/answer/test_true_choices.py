"""Choices whose truth is known: what is taken, that nothing false is said, and that each way out holds."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders.comparison_samples import HIGH, cells
from builders.loops import loop_over, read_tables
from builders.made_answers import answered, keep_campaign, made_quality, speeds
from loadgen.figures.objectives import Standing, parse_objectives
from loadgen.report.load_identity import Load
from loadgen.study.answer.answer import make_answer
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.recommendation import judge_reported
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.run_summary import Reported

TABLES = read_tables("answer")
_GIB = 1 << 30
RATED = replace(HIGH, name="rated", request_rate_per_s=4.0, max_concurrency=None)
HOT = (1.0, 0.9, 0.75, 0.6, 0.5)  # a machine that gets hotter, repeat by repeat
NEAR = (1.0, 1.001, 0.999, 1.002, 0.998)


def drifting(name: str, speed: float, repeats: Sequence[int], load: Load = HIGH) -> list[Reported]:
    """A row's cells of some repeats of a machine that gets hotter; of a rated load the E2EL follows."""
    made = cells(name, [100 * speed * HOT[at] * NEAR[at] for at in range(5)], load)
    e2el = {"mean_e2el_ms": 1e5}
    told = [replace(each, figures={**each.figures, **e2el}) for each in made]
    return [
        replace(each, figures={**each.figures, "mean_e2el_ms": 1e5 / speed / HOT[at] / NEAR[at]})
        for at, each in enumerate(told)
        if at in repeats
    ]


def shorter(name: str, share: float, speed: float = 1.0) -> list[Reported]:
    """Five cells under a rate whose answers are `share` as long, each token as fast as `speed` says."""
    tokens = round(12_800 * share)
    made = cells(name, [100 * speed * near for near in NEAR], RATED)
    figures = [
        {"total_output_tokens": tokens, "mean_e2el_ms": 1e3 * share / speed / near, "output_throughput": 51.2}
        for near in NEAR
    ]
    return [replace(each, figures={**each.figures, **own}) for each, own in zip(made, figures, strict=True)]


def others(
    name: str,
    speed: float,
    requests: int = 100,
    lost: int = 0,
    counted: bool = True,
    repeats: int = 4,
    **ranks: float,
) -> list[Reported]:
    """Results of another client: `ranks` are E2EL in ms by percentile, as of speed 1."""
    answered_ = requests - lost
    counts = {"completed": answered_, "total_output_tokens": 128 * answered_}
    counts |= {"total_input_tokens": 2048 * answered_, **({"failed": lost} if counted else {})}
    return [
        replace(
            each,
            told_by="vllm",
            load=replace(HIGH, requests=requests),
            figures={
                **each.figures,
                **counts,
                **{f"{rank}_e2el_ms": value / speed / near for rank, value in ranks.items()},
            },
        )
        for each, near in zip(
            cells(name, [100 * speed * near for near in NEAR[:repeats]]), NEAR, strict=False
        )
    ]


def sized(name: str, speed: float, gib: float, engine: str = "llama.cpp 1") -> list[Reported]:
    return [
        replace(each, memory_bytes=round(gib * _GIB), weight_bytes=_GIB, engine=engine)
        for each in cells(name, [100 * speed * near for near in NEAR[:3]])
    ]


def quick(level: str = "", input_len: float = 2048.0, **means: float) -> list[Reported]:
    made = speeds(replace(HIGH, input_len=input_len), NEAR[:3], **means)
    return [replace(each, level=level) for each in made]


NAMED = {"ALL": range(5), "RATED": RATED}
MAKERS: dict[str, Callable[..., list[Reported]]] = {
    "cells": cells, "drifting": drifting, "others": others, "quick": quick, "shorter": shorter,
    "sized": sized,
}  # fmt: skip


def make_runs(maker: str, *given: Any) -> list[Reported]:
    """Make a group of runs of a row: the maker's name, its arguments, and at the end those with names."""
    keys = given[-1] if given and isinstance(given[-1], dict) else {}
    told = given[:-1] if keys else given
    return MAKERS[maker](*(NAMED[each] if each in ("ALL", "RATED") else each for each in told), **keys)


@pytest.mark.parametrize("row", [pytest.param(row[1:], id=row[0]) for row in TABLES["choices"]])
def test_a_choice_is_true(tmp_path: Path, row: Any) -> None:
    """Runs, the right choice with its names, and words that must, or must not, be there."""
    groups, choice, names, more = row
    runs = [run for group in groups for run in make_runs(*group)]
    qualities = {name: made_quality(*given) for name, given in more.get("qualities", {}).items()}
    asked, first = more.get("asked", {}), runs[0].name
    keep_campaign(tmp_path, qualities, baseline=first, quality={"reference": first})
    (found,) = answered(tmp_path, runs, **asked).recommendations
    lines = "\n".join([found.words, *found.remarks])
    assert (found.choice, [*found.names]) == (choice, names), lines
    assert [words for words in more.get("said", []) if words not in lines] == [], lines
    assert [words for words in more.get("unsaid", []) if words in lines] == [], lines
    assert re.search(r",\s{2,}|, as fast|by \(|by ,|nan", lines) is None, lines
    for line in [found.words, *found.remarks]:
        if (way := re.match(r"with (--.*?): (.*?)(?:, [\d.]+ ×| \()", line)) is not None:
            words = shlex.split(way[1])
            typed: dict[str, Any] = {
                flag[2:].replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)
            }
            typed |= {"max_kl": float(typed["max_kl"])} if "max_kl" in typed else {}
            (again,) = answered(tmp_path, runs, **{**asked, **typed}).recommendations
            assert (again.choice, " or ".join(again.names)) == ("take", way[2]), line


def reported(requests: int, lost: int = 0, **ranks: float) -> Reported:
    """A result of another client: `requests` sent, `lost` of them failed, E2EL in ms by percentile."""
    figures: dict[str, Any] = {f"{rank}_e2el_ms": ms for rank, ms in ranks.items()}
    figures |= {"completed": requests - lost, "failed": lost}
    return Reported("m", figures, HIGH, "m.json")


@loop_over(("slo", "of", "standing"), [
    ("p95 < 100ms", [reported(100, p95=90.0 + at) for at in range(4)], Standing.MEETS),
    ("p95 < 100ms", [reported(100, p95=99.0 + at) for at in range(4)], Standing.NOT_SHOWN),
    ("p95 < 100ms", [reported(100, p95=120.0 + at) for at in range(4)], Standing.FAILS),
    ("p95 < 100ms", [reported(100, p95=90.0)], Standing.NOT_SHOWN),  # of one run
    ("p95 < 100ms", [reported(1000, p95=80.0, p99=90.0)], Standing.MEETS),  # 990 of 1,000 are within
    ("p95 < 100ms", [reported(60, p95=80.0, p99=90.0)], Standing.NOT_SHOWN),
    ("p95 < 100ms", [reported(1000, median=120.0, p95=200.0)], Standing.FAILS),
    ("p95 < 100ms", [reported(1000, 100, p95=50.0, p99=50.0)], Standing.FAILS),
    ("p95 < 100ms", [reported(1000, 50, p95=50.0, p99=50.0)], Standing.NOT_SHOWN),
    ("p95 < 100ms", [reported(1000, 10, p95=50.0, p99=50.0)], Standing.MEETS),
    ("p99 < 100ms", [reported(20, p99=50.0 + at) for at in range(4)], Standing.NOT_SHOWN),
    ("p99 < 100ms", [reported(20, p99=50.0) for at in range(30)], Standing.NOT_SHOWN),
    ("p99 < 100ms", [reported(500, p99=50.0 + at) for at in range(4)], Standing.MEETS),
])  # fmt: skip
def test_results_of_others_are_judged_by_all_that_was_sent(
    slo: str, of: Sequence[Reported], standing: Standing
) -> None:
    (objective,) = parse_objectives(f"e2el {slo}")
    assert judge_reported(objective, of)[0] is standing


def test_a_bound_of_others_results_holds_as_often_as_it_says() -> None:
    """400 sets of runs whose true P95 is just beyond the limit: `meets` is wrong in 3 % of them at most."""
    random = np.random.default_rng(3)
    limit = 100 * math.exp(0.5 * 1.6448536)  # of a log-normal latency
    (objective,) = parse_objectives(f"e2el p95 < {limit * 0.999:.6f}ms")
    wrong = 0
    for _ in range(400):
        drawn = 100 * np.exp(0.5 * random.standard_normal((int(random.integers(2, 9)), 100)))
        ranks = np.quantile(drawn, [0.95, 0.99], axis=1)
        made = [reported(100, p95=float(p95), p99=float(p99)) for p95, p99 in ranks.T]
        wrong += judge_reported(objective, made)[0] is Standing.MEETS
    assert wrong <= 12


def simulate_choice(random: np.random.Generator, most: int) -> tuple[str, ...]:
    """Draw a choice of up to `most` rows with missing cells, drift and noise; return what is false of it.

    Up to half of a row's cells are missing, always the slowest or the fastest ones; speeds are within 6 %,
    some equal. The answer is of runs outside a campaign's directory.
    """
    repeats, names = int(random.integers(4, 9)), "ABCDEFGH"[: int(random.integers(2, most + 1))]
    truth = {name: 100 * float(random.choice([1.0, 1.0, 0.97, 0.94])) for name in names}
    drift, spread = float(random.choice([0.0, 0.03, 0.1])), float(random.choice([0.002, 0.01, 0.03]))
    made = []
    for name, speed in truth.items():
        values = [
            speed * math.exp(-drift * at + spread * float(random.standard_normal())) for at in range(repeats)
        ]
        kept = int(random.integers(repeats // 2, repeats + 1))
        chosen = range(kept) if random.random() < 0.5 else range(repeats - kept, repeats)
        made += [each for at, each in enumerate(cells(name, values)) if at in chosen]
    ask = ComparisonOptions()
    found = make_answer(compare_runs(made, ask), [], ask, AnswerRequest(), True)
    assert found is not None
    (advice,) = found.recommendations
    if advice.choice != "take":
        return ()
    best = max(truth.values())
    wrong = [name for name in advice.names if truth[name] < best * (1 - ask.equivalence)]
    if len(advice.names) == 1 and truth[advice.names[0]] < best:
        wrong.append("the fastest")
    return tuple(wrong)


def test_what_is_taken_is_truly_best() -> None:
    """60 choices: 5 % at most are of a checkpoint that is not the fastest, or not as fast as is said."""
    random = np.random.default_rng(7)
    assert sum(bool(simulate_choice(random, 4)) for _ in range(60)) <= 3


@pytest.mark.long
@pytest.mark.parametrize("most", [2, 4, 8])
def test_what_is_taken_is_truly_best_as_often_as_it_says(most: int) -> None:
    random = np.random.default_rng(most)
    assert sum(bool(simulate_choice(random, most)) for _ in range(600)) <= 30
