"""What the engine counts and how it tells Prometheus."""

from __future__ import annotations

import pytest

from builders.loops import loop_over, read_tables
from loadgen_servers.engine.metrics import Histogram, Metrics
from loadgen_servers.engine.scheduler import Limits, Scheduler, Sequence
from loadgen_servers.engine.step_times import FittedTiming

TABLES = read_tables("engine_metrics")

MS = 1_000_000


def serve(scheduler: Scheduler, *sequences: Sequence, metrics: Metrics | None = None) -> Metrics:
    """What is counted of sequences that come at once, each step begun as the last one ends."""
    metrics = metrics or Metrics("m")
    for sequence in sequences:
        scheduler.add(sequence)
    now_ns = 0
    while (step := scheduler.begin(now_ns)) is not None:
        now_ns = step.end_ns
        metrics.record(scheduler.end(step, now_ns), now_ns)
    return metrics


def served(requests: list[tuple[int, int]]) -> tuple[Metrics, Scheduler]:
    """All requests at once on 10 ms steps, to their end."""
    scheduler = Scheduler(Limits(8, 1000, 10_000), FittedTiming(overhead_ms=10.0))
    return serve(scheduler, *(Sequence(p, out, p + out, arrived_ns=0) for p, out in requests)), scheduler


def samples(text: bytes) -> dict[str, float]:
    rows = (line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


@loop_over(("name", "value"), TABLES["after three requests"])
def test_after_three_requests(name: str, value: float) -> None:
    metrics, scheduler = served([(100, 5), (20, 3), (10, 1)])
    assert samples(metrics.text(scheduler))[name] == pytest.approx(value)


@loop_over(("caching", "queries", "hits"), [(True, 80, 32), (False, 0, 0)])
def test_prefix_hits_count_as_vllm_counts_them(caching: bool, queries: int, hits: int) -> None:
    scheduler = Scheduler(Limits(8, 1000, 10_000, prefix_caching=caching), FittedTiming(overhead_ms=10.0))
    metrics, blocks = Metrics("m"), (1, 2) if caching else ()
    for _ in range(2):
        serve(scheduler, Sequence(40, 2, 42, arrived_ns=0, blocks=blocks), metrics=metrics)
    told = samples(metrics.text(scheduler))
    one = 'engine="0",model_name="m"'
    expected = {
        f"prefix_cache_queries_total{{{one}}}": queries,
        f"prefix_cache_hits_total{{{one}}}": hits,
        f"prompt_tokens_total{{{one}}}": 80,
        f"prompt_tokens_cached_total{{{one}}}": hits,
        f'prompt_tokens_by_source_total{{{one},source="local_compute"}}': 80 - hits,
        f'prompt_tokens_by_source_total{{{one},source="local_cache_hit"}}': hits,
    }
    assert {name: told[f"vllm:{name}"] for name in expected} == expected
    config = f'block_size="16",enable_prefix_caching="{caching}",engine="0",kv_cache_size_tokens="10000"'
    assert told[f"vllm:cache_config_info{{{config}}}"] == 1


def test_a_preemption_is_one_long_gap_and_no_second_first_token() -> None:
    scheduler = Scheduler(Limits(8, 1000, 100, preempt=True), FittedTiming(overhead_ms=10.0))
    metrics = serve(scheduler, *(Sequence(40, 30, 70, arrived_ns=0) for _ in range(2)))
    told = samples(metrics.text(scheduler))
    one = '{engine="0",model_name="m"}'
    expected = {
        "num_preemptions_total": 1,
        "prompt_tokens_total": 80,
        "generation_tokens_total": 60,
        "time_to_first_token_seconds_count": 2,
        "inter_token_latency_seconds_count": 58,
        # Steps 12 to 30 were the other's alone: the twelfth token came twenty steps after the eleventh.
        "inter_token_latency_seconds_sum": pytest.approx(0.57 + 0.20),
    }
    assert {name: told[f"vllm:{name}{one}"] for name in expected} == expected


def test_gauges_follow_the_scheduler() -> None:
    scheduler = Scheduler(Limits(1, 1000, 1000), FittedTiming(overhead_ms=1.0))
    for _ in range(3):
        scheduler.add(Sequence(40, 10, 50, arrived_ns=0))
    scheduler.begin(0)
    told = samples(Metrics("m").text(scheduler))
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    assert [told[f'vllm:{name}{{engine="0",model_name="m"}}'] for name in names] == [1, 2, 0.05]


def test_every_family_is_declared_once_before_its_samples() -> None:
    metrics, scheduler = served([(1, 1)])
    declared: list[str] = []
    for line in metrics.text(scheduler).decode().splitlines():
        if line.startswith("# TYPE"):
            declared.append(line.split()[2])
        elif not line.startswith("#"):
            assert line.startswith(declared[-1])
    assert len(declared) == len(set(declared))


def test_a_value_on_a_bound_falls_under_it_and_many_count_at_once() -> None:
    histogram = Histogram("h", (0.01, 0.1))
    histogram.observe(10 * MS, 5)
    histogram.observe(10 * MS + 1)
    histogram.observe(1000 * MS)
    assert histogram.counts == [5, 1, 1]
    assert histogram.sum_s == pytest.approx(1.06)
