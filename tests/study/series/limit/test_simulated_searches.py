"""The queue that searches are proven on: it is the engine with one slot, and its formula is true of it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bars.limits import CASES, Case, searched, show_evidence
from benchmarks.simulated.queue import compute_share_over, utilisation_at, waits_s
from builders.loops import loop_over
from builders.virtual_engine import open_loop
from loadgen.figures.objectives import Objective, judge_objectives
from loadgen.figures.per_request import MetricOptions
from loadgen.records.record import Record, Records
from loadgen_servers.engine.scheduler import Limits, Scheduler
from loadgen_servers.engine.step_times import FittedTiming


def test_the_engine_with_one_slot_is_the_queue() -> None:
    arrivals_s = np.cumsum(np.random.default_rng(1).exponential(0.0125, 2000))
    arrivals_ns = np.rint(1e9 * arrivals_s).astype(np.int64)
    scheduler = Scheduler(Limits(max_num_seqs=1, prefix_caching=False), FittedTiming(weights_ms=10))
    run = open_loop(scheduler, arrivals_ns.tolist(), [(8, 1)] * 2000)
    waited_ns = [sequence.first_ns - sequence.arrived_ns - 10_000_000 for sequence in run.sequences]
    assert waited_ns == pytest.approx(1e9 * waits_s(arrivals_ns / 1e9, 0.01), abs=1)


@loop_over(("utilisation", "services"), [(0.5, 2.3), (0.8, 6.7), (0.9, 12.0)])
def test_the_formula_is_the_share_of_a_long_queue(utilisation: float, services: float) -> None:
    arrivals_s = np.cumsum(np.random.default_rng(2).exponential(1 / utilisation, 2_000_000))
    over = float((waits_s(arrivals_s, 1.0) > services).mean())
    assert compute_share_over(utilisation, services) == pytest.approx(over, rel=0.05)


def test_the_utilisation_is_the_one_whose_share_was_asked() -> None:
    assert compute_share_over(utilisation_at(0.01, 6.0), 6.0) == pytest.approx(0.01, rel=1e-9)


@loop_over("percentile", [50, 90, 99])
def test_waits_after_bursts_show_what_records_of_them_show(percentile: float) -> None:
    random = np.random.default_rng(3)
    arrivals_s = np.cumsum(random.gamma(0.25, 4 * 0.0125, 2000))
    waits_ns = np.rint(1e9 * waits_s(arrivals_s, 0.01)).astype(np.int64)
    arrivals_ns = np.rint(1e9 * arrivals_s).astype(np.int64)
    objective = Objective("ttft", percentile, 150)
    records = Records.from_records(
        Record(
            index, 0, sent_ns, sent_ns, sent_ns + wait_ns, arrival_ns=np.array([sent_ns + wait_ns]),
            tokens=np.ones(1, np.int64), output_tokens=1,
        )
        for index, (sent_ns, wait_ns) in enumerate(zip(arrivals_ns.tolist(), waits_ns.tolist(), strict=True))
    )  # fmt: skip
    (shown,) = judge_objectives(records, (objective,), MetricOptions())
    expected = show_evidence(objective, waits_ns / 1e6)
    assert (shown.samples, shown.over, shown.batches) == (2000, expected.over, expected.batches)
    assert (shown.bound, shown.dispersion) == (expected.bound, expected.dispersion)
    assert shown.value == pytest.approx(expected.value, rel=1e-12)
    assert shown.over > 0
    assert shown.dispersion > 2


@pytest.mark.parametrize(
    "seeds", [range(1000, 1001), pytest.param(range(1001, 1004), marks=pytest.mark.long)]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rate_per_s:g}")
def test_searches_find_the_limit_of_the_queue(case: Case, seeds: range) -> None:
    found = [searched(case, seed) for seed in seeds]
    assert [each.ratio for each in found] == pytest.approx([1.0] * len(seeds), rel=0.1)
    assert max(each.runs for each in found) <= 12


@pytest.mark.parametrize(
    "seeds", [range(1000, 1001), pytest.param(range(1001, 1006), marks=pytest.mark.long)]
)
@pytest.mark.parametrize("floor", [0.02, 0.05, 0.08])
def test_prompts_over_the_limit_at_any_load_do_not_bend_the_curve(floor: float, seeds: range) -> None:
    """Near the percentile itself, 8 of 10 %, a search may end wide: its interval says so."""
    found = [searched(Case(10, 90, 10.0, floor), seed) for seed in seeds]
    assert float(np.median([each.ratio for each in found])) == pytest.approx(1.0, rel=0.2)
    narrow = [each.ratio for each in found if each.ended == "within"]
    assert narrow == pytest.approx([1.0] * len(narrow), rel=0.2)
    assert sum(not each.covered for each in found) <= len(seeds) // 3
