"""What two snapshots, and those between them, say of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.required import require
from loadgen.server.prometheus import MetricsSnapshot, parse_metrics, select_lines
from loadgen.server.scraper import ScrapedRun, join_windows
from loadgen.server.server_counters import ServerSample, ServerWindow, make_window

TABLES = read_tables("server_counters")

RECORDED = Path(__file__).parents[1] / "data" / "metrics"
CHANGED = "/metrics had vllm's names before the run and sglang's after it"


def recorded(name: str) -> MetricsSnapshot:
    return parse_metrics(select_lines(200, (RECORDED / f"{name}.txt").read_bytes()))


def counted(names: str = "vllm", **tokens: float) -> MetricsSnapshot:
    """Generated tokens by model."""
    return MetricsSnapshot(
        names, {(model, "generation_tokens", ""): count for model, count in tokens.items()}
    )


def lane(tokens: float, started: float | None = None) -> MetricsSnapshot:
    """What one process shows: its generated tokens, and when it started."""
    gauges = {} if started is None else {("", "started", ""): started}
    return MetricsSnapshot("vllm", {("m", "generation_tokens", ""): tokens}, gauges)


def timed(*counts: float, total_s: float) -> MetricsSnapshot:
    """A TTFT histogram: counts up to 20 ms, 40 ms and beyond."""
    parts = dict(zip(("0.02", "0.04", "+Inf"), counts, strict=True)) | {"sum": total_s}
    return MetricsSnapshot("vllm", {("m", "ttft", part): value for part, value in parts.items()})


@loop_over(("before", "after", "said"), TABLES["between"])
def test_two_recorded_expositions_differ_by_what_was_done_between(
    before: str, after: str, said: dict[str, Any]
) -> None:
    found = make_window(recorded(before), recorded(after))
    assert json.loads(json.dumps({name: getattr(found, name) for name in said})) == said
    assert not found.reset
    assert ServerWindow.model_validate_json(found.model_dump_json()) == found


def test_a_recorded_histogram_gives_mean_and_brackets() -> None:
    ttft = require(make_window(recorded("vllm_idle"), recorded("vllm_after_bench")).ttft)
    assert (ttft.count, round(ttft.mean_ms, 3)) == (53, 370.564)
    assert ttft.brackets_ms == {"50": (20, 40), "90": (40, 60), "99": (10000, 20000)}


@loop_over_named(
    ("counts", "brackets"),
    {
        "all in the first": ((10, 10, 10), {"50": (0, 20), "90": (0, 20), "99": (0, 20)}),
        "one in each": ((5, 9, 10), {"50": (0, 20), "90": (20, 40), "99": (40, None)}),
        "beyond": ((0, 0, 1), {"50": (40, None), "90": (40, None), "99": (40, None)}),
    },
)
def test_a_percentile_lies_in_the_bucket_that_holds_its_rank(
    counts: tuple[float, ...], brackets: dict[str, Any]
) -> None:
    """Over the window alone: a hundred slow ones came before it."""
    before = timed(0, 0, 100, total_s=900.0)
    after = timed(counts[0], counts[1], 100 + counts[2], total_s=900.5)
    ttft = require(make_window(before, after).ttft)
    assert (ttft.count, ttft.brackets_ms) == (counts[2], brackets)
    assert ttft.mean_ms == pytest.approx(500 / counts[2])


def test_vllms_prefill_and_decode_add_up_to_its_inference() -> None:
    found = make_window(recorded("vllm_idle"), recorded("vllm_after_bench"))
    prefill, decode, inference = map(require, (found.prefill, found.decode, found.inference))
    assert (prefill.count, decode.count, inference.count) == (53, 53, 53)
    assert prefill.mean_ms + decode.mean_ms == pytest.approx(inference.mean_ms)


def test_of_sglangs_stages_only_the_prefill_is_counted() -> None:
    found = make_window(recorded("sglang_after_bench"), recorded("sglang_loaded"))
    prefill = require(found.prefill)
    assert (prefill.count, round(prefill.mean_ms, 3)) == (25, 54.467)
    assert (found.decode, found.inference) == (None, None)


def test_a_histogram_that_did_not_move_says_nothing() -> None:
    still = timed(1, 2, 3, total_s=0.1)
    assert make_window(still, still).ttft is None


def test_a_counter_that_appears_starts_from_nothing() -> None:
    found = make_window(MetricsSnapshot("sglang"), counted("sglang", m=7))
    assert (found.generation_tokens, found.reset) == (7, False)


@loop_over_named(
    "snapshots",
    {
        "went backwards": [counted(m=10), counted(m=9)],
        "vanished": [counted(m=10), MetricsSnapshot("vllm")],
        "went backwards in between": [counted(m=10), counted(m=2), counted(m=30)],
        "went backwards after a sample": [counted(m=10), counted(m=20), counted(m=15)],
        "another process": [lane(1, 100.0), lane(50, 101.0)],
        "a recorded restart": [recorded("vllm_after_bench"), recorded("vllm_loaded")],
    },
)
def test_a_server_that_began_anew_has_no_figures(snapshots: list[MetricsSnapshot]) -> None:
    first, *between, last = snapshots
    found = make_window(first, last, [(float(i), snapshot) for i, snapshot in enumerate(between)])
    assert (found.reset, found.generation_tokens, found.finished) == (True, None, None)


def test_a_sum_of_seconds_may_fall_with_the_wall_clock() -> None:
    assert not make_window(timed(1, 1, 1, total_s=5.0), timed(2, 2, 2, total_s=4.0)).reset


@loop_over(
    ("asked", "tokens"),
    [("a", 5), ("b", 7), pytest.param("alias of a", 12, id="a name the server does not count under")],
)
def test_of_two_models_the_asked_one_is_counted_and_both_are_named(asked: str, tokens: int) -> None:
    found = make_window(counted(a=10, b=20, c=3), counted(a=15, b=27, c=3), model=asked)
    assert (found.generation_tokens, found.models) == (tokens, ("a", "b"))


def test_samples_keep_their_moments_and_peaks() -> None:
    def sample(running: float, waiting: float | None) -> MetricsSnapshot:
        gauges = {"running": running} | ({} if waiting is None else {"waiting": waiting})
        return MetricsSnapshot("vllm", {}, {("m", name, ""): value for name, value in gauges.items()})

    found = make_window(counted(m=1), counted(m=2), [(0.5, sample(3, 1)), (1.5, sample(8, None))])
    assert found.samples == (ServerSample(at_s=0.5, running=3, waiting=1), ServerSample(at_s=1.5, running=8))
    assert [found.peak(gauge) for gauge in ("running", "waiting", "kv_cache_usage")] == [8, 1, None]


@loop_over_named(
    ("names", "before", "sampled", "counts"),
    {
        "since the run began": ("vllm", 7, (7, 9, 30), (0, 2, 23)),
        "appears with the first": ("sglang", None, (None, 1, 2), (0, 1, 2)),
        "not counted": ("llamacpp", None, (None, None), (None, None)),
        "went backwards": ("vllm", 7, (3,), (None,)),
    },
)
def test_samples_count_preemptions_since_the_run_began(
    names: str, before: int | None, sampled: tuple[int | None, ...], counts: tuple[int | None, ...]
) -> None:
    def snapshot(count: int | None) -> MetricsSnapshot:
        return MetricsSnapshot(names, {} if count is None else {("m", "preemptions", ""): count})

    between = [(float(at_s), snapshot(count)) for at_s, count in enumerate(sampled)]
    found = make_window(snapshot(before), snapshot(sampled[-1]), between)
    assert tuple(each.preemptions for each in found.samples) == counts


@loop_over(
    ("before", "after", "error"),
    [
        (MetricsSnapshot(error="x"), counted(m=1), "x"),
        (counted(m=1), MetricsSnapshot(error="y"), "y"),
        (counted(m=1), counted("sglang", m=1), CHANGED),
    ],
)
def test_without_both_ends_there_is_no_window(
    before: MetricsSnapshot, after: MetricsSnapshot, error: str
) -> None:
    assert make_window(before, after) == ServerWindow(error=error)


def part(before: float, after: float, *running: float, settled: bool = True) -> ScrapedRun:
    """One server's tokens around a run, and its running requests at each second of it."""
    gauges = [{("m", "running", ""): value, ("m", "kv_cache_usage", ""): value / 10} for value in running]
    samples = tuple(enumerate(MetricsSnapshot("vllm", {}, each) for each in gauges))
    return ScrapedRun(counted(m=before), counted(m=after), samples, settled)


def test_servers_that_share_a_run_have_one_window() -> None:
    found = join_windows([part(10, 40, 1.0, 2.0), part(1000, 1050, 3.0, 1.0, 7.0, settled=False)], "m")
    assert (found.generation_tokens, found.settled, found.reset) == (80, False, False)
    assert found.samples == (
        ServerSample(at_s=0, running=4.0, kv_cache_usage=0.3),
        ServerSample(at_s=1, running=3.0, kv_cache_usage=0.2),
    )


def test_their_histograms_are_pooled() -> None:
    nothing, one, other = timed(0, 0, 0, total_s=0), timed(1, 1, 1, total_s=0.01), timed(0, 0, 3, total_s=0.3)
    found = require(join_windows([ScrapedRun(nothing, one), ScrapedRun(nothing, other)], "m").ttft)
    assert found.count == 4
    assert found.mean_ms == pytest.approx(77.5)
    assert found.brackets_ms["50"] == (40, None)


@loop_over(
    ("second", "expected"),
    [
        (part(50, 10), ServerWindow(names="vllm", reset=True)),
        (ScrapedRun(MetricsSnapshot(error="none"), counted(m=1)), ServerWindow(error="none")),
        (
            ScrapedRun(counted("sglang", m=0), counted("sglang", m=1)),
            ServerWindow(error="/metrics has the names of sglang and vllm at different servers"),
        ),
    ],
)
def test_what_one_server_lacks_none_has(second: ScrapedRun, expected: ServerWindow) -> None:
    assert join_windows([part(0, 10), second], "m") == expected


OLD, NEW = 100.0, 600.0


@loop_over_named(
    ("series", "several", "reset"),
    {
        "an older start time after a newer": ([(9000, NEW), (0, OLD)], True, False),
        "two in turn, it is back": ([(0, OLD), (9000, NEW), (40, OLD), (9100, NEW)], True, False),
        "one restart": ([(0, OLD), (400, OLD), (10, NEW), (90, NEW)], False, True),
        "restarts without end": ([(5, 1.0), (10, 2.0), (1, 3.0), (2, 4.0)], False, True),
        "only ever more": ([(0, None), (40, None), (9000, None), (9100, None)], False, False),
        "without times": ([(9000, None), (0, None), (9050, None), (40, None), (9100, None)], True, False),
        "a restart without": ([(0, None), (400, None), (10, None), (90, None)], False, True),
        "two restarts without": ([(0, None), (400, None), (10, None), (90, None), (3, None)], False, True),
        "two scrapes without times": ([(9000, None), (0, None)], False, True),
    },
)
def test_replicas_behind_one_address_are_no_restart(
    series: list[tuple[float, float | None]], several: bool, reset: bool
) -> None:
    """A restart's start time is newer; its counters begin afresh and never come back to where they were."""
    first, *between, last = (lane(*each) for each in series)
    found = make_window(first, last, [(float(at), each) for at, each in enumerate(between)])
    assert ("several servers in turn" in found.error, found.reset) == (several, reset)
    assert found.is_known is not (several or reset)
