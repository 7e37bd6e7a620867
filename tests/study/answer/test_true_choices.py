"""Choices whose truth is known: what is taken, that nothing false is said, and that each way out holds."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from builders.comparison_samples import HIGH, cells
from builders.loops import loop_over
from builders.made_answers import answered, keep_campaign, made_quality, speeds
from loadgen.figures.objectives import Standing, parse_objectives
from loadgen.report.load_identity import Load
from loadgen.study.answer.answer import make_answer
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.recommendation import judge_reported
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.quality.quality_record import Quality
from loadgen.study.run_summary import Reported

_GIB = 1 << 30
RATED = replace(HIGH, name="rated", request_rate_per_s=4.0, max_concurrency=None)
HOT = (1.0, 0.9, 0.75, 0.6, 0.5)  # a machine that gets hotter, repeat by repeat
NEAR = (1.0, 1.001, 0.999, 1.002, 0.998)


class Choice(msgspec.Struct, frozen=True):
    """Runs, what is asked, the right choice with its names, and words that must, or must not, be there."""

    runs: Sequence[Reported]
    choice: str
    names: tuple[str, ...]
    said: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    asked: Mapping[str, Any] = {}
    qualities: Mapping[str, Quality] = {}


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
    name: str, speed: float, requests: int = 100, lost: int = 0, repeats: int = 4, **ranks: float
) -> list[Reported]:
    """Results of another client: `ranks` are E2EL in ms by percentile, as of speed 1."""
    answered_ = requests - lost
    counts = {"completed": answered_, "failed": lost, "total_output_tokens": 128 * answered_}
    counts["total_input_tokens"] = 2048 * answered_
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


def quick(**means: float) -> list[Reported]:
    return speeds(HIGH, NEAR[:3], **means)


ALL = range(5)
CHOICES = {
    "slower in every pair, its slow cells missing": Choice(
        [*drifting("A", 1, ALL), *drifting("B", 0.85, range(3))], "take", ("A",),
        ("take A: the fastest, 1.18 × as fast as B", "B leads by the mean of all runs"), ("equally fast",),
    ),
    "faster in every pair, though its mean is behind": Choice(
        [*drifting("A", 1, range(2)), *drifting("B", 1.1, ALL)], "take", ("B",), ("1.10 × as fast as A",),
    ),
    "the same by a latency": Choice(
        [*drifting("A", 1, ALL, RATED), *drifting("B", 0.85, range(3), RATED)], "take", ("A",),
        ("take A: the fastest",), ("equally fast",),
    ),
    "equal, each with other cells missing": Choice(
        [*drifting("A", 1, (0, 1, 2, 3)), *drifting("B", 1, (1, 2, 3, 4))], "take", ("A", "B"),
        ("they are equally fast",), ("leads",),
    ),
    "all slower than the baseline": Choice(
        quick(A=100, B=80, C=70), "take", ("A",), ("1.25 × as fast as B",)
    ),
    "all equal": Choice(quick(A=100, B=100.02, C=99.98), "take", ("B", "A", "C"), ("equally fast",)),
    "two best are equal, one behind": Choice(
        quick(A=100, B=100.02, C=80), "take", ("B", "A"), ("equally fast", "next: C, 0.80 × as fast"),
    ),
    "not told apart": Choice(
        [*cells("A", [100, 108, 94]), *cells("B", [101, 93, 107])], "undecided", ("A", "B"),
        ("A leads B by 1.0", "which is not significant", "per side would decide it"), ("take",),
    ),
    "one run a side": Choice(
        [*cells("A", [100]), *cells("B", [150])], "undecided", ("B", "A"),
        ("B leads A by 1.50 ×, which is not significant: one run a side has no spread",), ("take",),
    ),
    "more than the percentile leaves out failed": Choice(
        [*others("A", 1, p95=1300.0), *others("B", 1.1, lost=9, p95=1300.0)], "take", ("A",),
        ("excluded: B (e2el p95 is inf ms)",), ("take B", "with --slo"), {"slo": "e2el p95 < 1400ms"},
    ),
    "failures that no count names": Choice(
        [
            *others("A", 1, p95=1300.0),
            *(
                replace(each, figures={k: v for k, v in each.figures.items() if k != "failed"})
                for each in others("B", 1.1, lost=9, p95=1300.0)
            ),
        ],
        "take", ("A",), ("excluded: B",), (), {"slo": "e2el p95 < 1400ms"},
    ),
    "fewer failed, and a higher percentile is within": Choice(
        [*others("A", 1, p95=1300.0, p99=1350.0), *others("B", 1.1, lost=3, p95=1300.0, p99=1350.0)],
        "take", ("B",), ("B: 12 of 400 requests failed",), (), {"slo": "e2el p95 < 1400ms"},
    ),
    "fewer failed, and no higher percentile is known": Choice(
        [*others("A", 1, p95=1300.0), *others("B", 1.1, lost=3, p95=1300.0)], "undecided", ("B", "A"),
        ("its e2el p95 is not known", "A is within all", "B: 12 of 400 requests failed"), ("take",),
        {"slo": "e2el p95 < 1400ms"},
    ),
    "failures without an objective": Choice(
        [*others("A", 1), *others("B", 1.1, lost=9)], "take", ("B",), ("B: 36 of 400 requests failed",),
    ),
    "P99 of 20 requests a run": Choice(
        [*others("A", 1, 20, p99=1300.0), *others("B", 1.1, 20, p99=1300.0)], "undecided", ("B",),
        ("of too few requests",), ("take",), {"slo": "e2el p99 < 1400ms"},
    ),
    "P99 of enough": Choice(
        [*others("A", 1, 1000, p99=1300.0), *others("B", 1.1, 1000, p99=1300.0)], "take", ("B",),
        ("take B: the fastest within e2el p99 < 1400 ms",), (), {"slo": "e2el p99 < 1400ms"},
    ),
    "a limit between the bounds": Choice(
        [*others("A", 1, 1000, p99=1300.0), *others("B", 1.1, 1000, p99=1539.5)], "undecided", ("B", "A"),
        ("at most 1500 ms", "A is within all"), ("take",), {"slo": "e2el p99 < 1400ms"},
    ),
    "the way out is undecided too": Choice(
        [*quick(A=100, B=120), *cells("C", [121, 114, 126])], "take", ("A",),
        ("with --max-kl 0.022: B", "excluded: C"), ("--max-kl 0.11",),
        {"max_kl": 0.01}, {"B": made_quality(0.02, 0.002), "C": made_quality(0.1)},
    ),
    "a way out that holds": Choice(
        quick(A=100, B=120, C=150), "take", ("A",),
        ("with --max-kl 0.12: C, 1.5", "with --max-kl 0.022: B, 1.20 × as fast"), (),
        {"max_kl": 0.01}, {"B": made_quality(0.02, 0.002), "C": made_quality(0.11)},
    ),
    "a way out that lets equals in": Choice(
        quick(A=100, B=149.99, C=150), "take", ("A",), ("with --max-kl",), (),
        {"max_kl": 0.01}, {"B": made_quality(0.1), "C": made_quality(0.11)},
    ),
    "two constraints in the way": Choice(
        [*sized("A", 1, 4), *sized("B", 1.5, 9)], "take", ("A",), ("with --fits 9GiB --max-kl 0.12: B",), (),
        {"max_kl": 0.01, "fits": "5GiB"}, {"B": made_quality(0.11)},
    ),
    "it took more than it would have to fit": Choice(
        [*sized("A", 1, 1.5, "vLLM 1"), *sized("B", 1.5, 2.35, "vLLM 1")], "undecided", ("B", "A"),
        ("took 2.35 GiB as it was run", "required: 2.1 GiB"), ("take",), {"fits": "2.1GiB"},
    ),
    "no candidate fits": Choice(
        [*sized("A", 1, 4), *sized("B", 1.5, 9)], "none", (),
        ("take none", "with --fits 9GiB: B", "with --fits 4GiB: A"), (), {"fits": "2GiB"},
    ),
    "answers 5 % shorter, by E2EL": Choice(
        [*shorter("A", 1), *shorter("B", 0.95)], "undecided", ("B", "A"),
        ("121.6 tokens per response", "TPOT is not"), ("take", "by ,"),
    ),
    "answers 5 % shorter, and faster too": Choice(
        [*shorter("A", 1), *shorter("B", 0.95, 1.5)], "undecided", ("B", "A"), ("per response",), ("take",),
    ),
    "answers as long, by E2EL": Choice(
        [*shorter("A", 1), *shorter("B", 1, 1.5)], "take", ("B",), ("1.50 × as fast as A",),
    ),
    "a third is unlike": Choice(
        [*quick(A=100, B=120), *speeds(replace(HIGH, input_len=4096.0), NEAR[:3], C=300)], "take", ("B",),
        ("take B: the fastest of those compared", "not ranked: C"),
    ),
    "the other one is unlike": Choice(
        [*quick(A=100), *speeds(replace(HIGH, input_len=4096.0), NEAR[:3], C=300)], "undecided", ("A",),
        ("A is the only one compared", "not ranked: C"), ("take",),
    ),
    "a third is INVALID": Choice(
        [*quick(A=100, B=120), *(replace(each, level="INVALID") for each in quick(C=300))], "take", ("B",),
        ("take B: the fastest of those compared", "not ranked: C (its runs are INVALID)"),
    ),
    "equal, and one is the reference": Choice(
        quick(bf16=100, B=100.02), "take", ("bf16",), ("as fast as B, and it is the reference",), (),
        {}, {"B": made_quality(0.02, 0.002)},
    ),
    "equal, and one is nearer to the reference": Choice(
        quick(bf16=100, B=150, C=150.02), "take", ("B",), ("as fast as C, and nearer to bf16",), (),
        {}, {"B": made_quality(0.02, 0.002), "C": made_quality(0.06, 0.02)},
    ),
    "equal, and the fastest is too far": Choice(
        quick(bf16=100, B=100.02, C=100.01), "take", ("bf16",), ("as fast as C", "excluded: B"), ("with",),
        {"max_kl": 0.05}, {"B": made_quality(0.2, 0.02), "C": made_quality(0.02, 0.002)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_true(tmp_path: Path, name: str) -> None:
    made = CHOICES[name]
    keep_campaign(
        tmp_path, made.qualities, baseline=made.runs[0].name, quality={"reference": made.runs[0].name}
    )
    (found,) = answered(tmp_path, made.runs, **made.asked).recommendations
    lines = "\n".join([found.words, *found.remarks])
    assert (found.choice, found.names) == (made.choice, made.names), lines
    assert [words for words in made.said if words not in lines] == [], lines
    assert [words for words in made.unsaid if words in lines] == [], lines
    assert re.search(r",\s{2,}|, as fast|by \(|by ,|nan", lines) is None, lines
    for line in [found.words, *found.remarks]:
        if (way := re.match(r"with (--.*?): (.*?)(?:, [\d.]+ ×| \()", line)) is not None:
            words = shlex.split(way[1])
            typed: dict[str, Any] = {
                flag[2:].replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)
            }
            typed |= {"max_kl": float(typed["max_kl"])} if "max_kl" in typed else {}
            (again,) = answered(tmp_path, made.runs, **{**made.asked, **typed}).recommendations
            assert (again.choice, " or ".join(again.names)) == ("take", way[2]), (
                line,
                [again.words, *again.remarks],
            )


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
