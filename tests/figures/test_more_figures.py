"""Figures that vLLM does not have: by hand, of a few requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.base import archive
from loadgen.base.record_columns import BOUNDS
from loadgen.figures import vllm_keys
from loadgen.figures.figure_table import parse_metrics
from loadgen.figures.metrics import Metrics, compute
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.record import UNKNOWN, Record, Records
from loadgen.figures.vllm_keys import BlockFacts
from loadgen.report import more_figures
from loadgen.transport.failure import Failure, FailureKind

MS = 1_000_000


def answer(index: int, at_ms: Sequence[int], visible: int = 0, **more: Any) -> Record:
    """A success sent at 1 s whose messages came `at_ms` later, the first visible one by its place."""
    fields: dict[str, Any] = {"input_tokens": 100, "output_tokens": len(at_ms), "usage": True, **more}
    return Record(
        index=index,
        slot=0,
        intended_ns=1000 * MS,
        sent_ns=1000 * MS,
        end_ns=(1000 + max(at_ms)) * MS,
        arrival_ns=np.array([(1000 + ms) * MS for ms in at_ms], np.int64),
        tokens=np.ones(len(at_ms), np.int64),
        visible_ns=UNKNOWN if visible < 0 else (1000 + at_ms[visible]) * MS,
        **fields,
    )


def measured(*records: Record, **ask: Any) -> Metrics:
    return compute(Records.of(records), MetricOptions(**ask))


LOST = Failure(FailureKind.STALL, "")
PLAIN = answer(0, [100, 110, 120], finish_reason="length")
REASONS = answer(1, [100, 150, 200], visible=2, finish_reason="stop")


def test_the_first_visible_token_is_later_where_an_answer_reasons() -> None:
    run = measured(PLAIN, REASONS, answer(2, [100, 300], visible=-1), answer(3, [9, 10], failure=LOST))
    assert (run.ttft.n, run.ttft.mean_ms) == (3, 100.0)
    assert (run.ttfvt.n, run.ttfvt.min_ms, run.ttfvt.max_ms) == (2, 100.0, 200.0)


def test_without_reasoning_it_is_the_ttft() -> None:
    run = measured(PLAIN, answer(1, [50, 60]))
    assert run.ttfvt == run.ttft


def test_speeds_are_of_each_request() -> None:
    run = measured(PLAIN, REASONS, metric_percentiles=(1.0, 99.0))
    assert (run.prefill_speed.n, run.prefill_speed.mean_tok_s) == (2, 1000.0)
    assert (run.user_tps.min_tok_s, run.user_tps.max_tok_s, run.user_tps.mean_tok_s) == (20.0, 100.0, 60.0)
    assert run.user_tps.percentiles_tok_s == {1.0: 20.8, 99.0: 99.2}
    assert run.e2el_per_token.min_ms == 40.0
    assert run.e2el_per_token.max_ms == pytest.approx(200 / 3)


@loop_over(
    ("record", "counts"),
    [
        pytest.param(answer(0, [100, 110]), (1, 1, 1), id="all known"),
        pytest.param(answer(0, [100]), (1, 0, 1), id="one token has no speed after the first"),
        pytest.param(answer(0, [100, 100]), (1, 0, 1), id="all tokens at once have none either"),
        pytest.param(answer(0, [0, 10]), (0, 1, 1), id="no time to the first token"),
        pytest.param(answer(0, [100, 110], input_tokens=-1, planned_input=64), (1, 1, 1), id="as planned"),
        pytest.param(answer(0, [100, 110], input_tokens=-1), (0, 1, 1), id="a prompt of unknown length"),
        pytest.param(answer(0, [100, 110], failure=LOST), (0, 0, 0), id="a failure"),
    ],
)
def test_what_a_request_lacks_it_has_no_figure_of(record: Record, counts: tuple[int, int, int]) -> None:
    run = measured(record)
    assert (run.prefill_speed.n, run.user_tps.n, run.e2el_per_token.n) == counts


@loop_over(
    ("sent_ms", "first_ms", "behind"),
    [
        pytest.param([0, 100, 200], [50, 150, 250], 0, id="one after another"),
        pytest.param([0, 50, 100], [50, 100, 150], 0, id="as the one before had its first token"),
        pytest.param([0, 40, 100], [50, 90, 150], 1, id="one before that"),
        pytest.param([0, 0, 0], [50, 60, 70], 3, id="all at once"),
        pytest.param([0, 10, 20], [90, 15, 30], 2, id="behind a slow one"),
    ],
)
def test_requests_that_may_have_queued_are_counted(
    sent_ms: list[int], first_ms: list[int], behind: int
) -> None:
    rows = [answer(i, [first, 300]) for i, first in enumerate(first_ms)]
    for row, ms in zip(rows, sent_ms, strict=True):
        row.sent_ns += ms * MS
    assert measured(*rows).prefill_behind == behind


def test_one_that_failed_or_never_answered_is_ahead_until_its_end() -> None:
    lost = answer(0, [100], failure=LOST)
    lost.arrival_ns, lost.tokens = lost.arrival_ns[:0], lost.tokens[:0]
    never = Record(2, 0, 1, sent_ns=0, end_ns=10**12, failure=LOST)
    late = answer(1, [90, 300])
    late.sent_ns += 50 * MS
    assert measured(lost, late, never).prefill_behind == 1


def test_the_share_of_ttft_in_the_queue_is_of_those_that_report_it() -> None:
    run = measured(answer(0, [100, 200], server_queue_ns=25 * MS), answer(1, [300, 400]))
    assert run.prefill_queued == 0.25
    assert measured(PLAIN).prefill_queued is None


def test_a_whole_answer_has_its_time_per_token_alone() -> None:
    record = Record(0, 0, 1, sent_ns=1, end_ns=1 + 400 * MS, input_tokens=9, output_tokens=8, usage=True)
    run = measured(record, streamed=False)
    assert (run.e2el_per_token.mean_ms, run.ttfvt.n, run.prefill_speed.n, run.user_tps.n) == (50.0, 0, 0, 0)


def test_nothing_successful_is_a_distribution_of_nothing() -> None:
    run = measured(answer(0, [100], failure=LOST))
    assert (run.ttfvt.n, run.e2el_per_token.n, run.prefill_speed.n, run.user_tps.n) == (0, 0, 0, 0)
    assert math.isnan(run.user_tps.mean_tok_s)
    assert (run.cached_share, run.finish_reasons) == (None, {})
    assert list(more_figures.lines(run)) == []


@pytest.mark.parametrize(
    ("cached", "share", "counts"),
    [([75, 25], 0.5, 2), ([75, -1], 0.75, 1), ([0, 0], 0.0, 2), ([-1, -1], None, 0)],
)
def test_the_cached_share_is_of_requests_that_report_it(
    cached: list[int], share: float | None, counts: int
) -> None:
    run = measured(*(answer(i, [100], cached_tokens=tokens) for i, tokens in enumerate(cached)))
    assert (run.cached_share, run.cached_counts) == (share, counts)


def test_finish_reasons_of_successes_are_counted_the_most_frequent_first() -> None:
    reasons = ["stop", "length", "length", "", "tool_calls"]
    rows = [answer(i, [100], finish_reason=reason) for i, reason in enumerate(reasons)]
    run = measured(*rows, answer(9, [100], finish_reason="abort", failure=LOST))
    assert run.finish_reasons == {"length": 2, "stop": 1, "none": 1, "tool_calls": 1}
    assert next(iter(run.finish_reasons)) == "length"


def test_however_many_finish_reasons_a_server_writes_few_are_kept() -> None:
    run = measured(*(answer(i, [100], finish_reason=f"reason {i // 2}") for i in range(100)))
    assert (len(run.finish_reasons), run.finish_reasons["other"]) == (17, 68)
    assert sum(run.finish_reasons.values()) == 100


@pytest.mark.parametrize(("gpus", "per_gpu"), [(0, None), (1, 25.0), (4, 6.25)])
def test_the_speed_per_gpu_needs_their_number(gpus: int, per_gpu: float | None) -> None:
    run = measured(answer(0, [100, 200, 300, 400, 120, 130, 140, 150, 160, 400]), gpus=gpus)
    assert run.output_throughput_per_gpu_per_s == per_gpu


def test_the_names_are_taken_and_their_keys_follow_the_metric() -> None:
    selected = parse_metrics("ttfvt,e2el_per_token,prefill_speed,user_tps")
    keys = vllm_keys.latencies(measured(PLAIN), BlockFacts(selected=selected))
    assert keys == {
        **{f"{word}_ttfvt_ms": 100.0 for word in ("mean", "median", "p99")},
        "std_ttfvt_ms": 0.0,
        **{f"{word}_e2el_per_token_ms": 40.0 for word in ("mean", "median", "p99")},
        "std_e2el_per_token_ms": 0.0,
        **{f"{word}_prefill_speed": 1000.0 for word in ("mean", "median", "p99")},
        "std_prefill_speed": 0.0,
        **{f"{word}_user_tps": 100.0 for word in ("mean", "median", "p99")},
        "std_user_tps": 0.0,
    }


def test_the_lines_have_each_figure_that_there_is() -> None:
    run = measured(PLAIN, REASONS, answer(2, [100, 300], visible=-1), gpus=2)
    assert list(more_figures.lines(run)) == [
        "TTFVT (first visible token): 150.00 ms mean, 150.00 median; 1 of 3 responses have none: they ended "
        "within their reasoning",
        "per user: 41.7 tok/s mean, 5.0 least (1 / TPOT); per GPU: 13.3 output tok/s; E2EL per output token: "
        "85.56 ms mean",
        "prefill: 1,000 tok/s mean, 1,000 median (input tokens / TTFT); 3 of 3 requests were sent while "
        "another had no token yet",
        "finish reasons: length 1, stop 1, none 1",
    ]


@pytest.mark.parametrize(
    ("visible", "reasoned", "line"),
    [
        (-1, 2, "TTFVT: none: no response is known to have text after its reasoning"),
        (-1, 1, "per user: 100.0 tok/s"),
        (0, 0, "per user: 100.0 tok/s"),
    ],
)
def test_answers_that_all_end_within_their_reasoning_are_a_line(
    visible: int, reasoned: int, line: str
) -> None:
    run = measured(*(answer(i, [100, 110], visible=visible) for i in range(2)))
    assert next(more_figures.lines(run, reasoned)).startswith(line)


def test_a_file_without_the_column_has_no_first_visible_token(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.npz"
    Records.of([PLAIN, REASONS]).save(path)
    names = [*BOUNDS, "start", "arrival_ns", "tokens"]
    names += ["failure_kind", "failure_detail", "finish_reason", "words", "word_start"]
    stored = archive.read_columns(path, names)
    del stored["visible_ns"]
    with path.open("wb") as file:
        archive.write_columns(file, stored)
    run = compute(Records.load(path), MetricOptions())
    assert (run.ttft.n, run.ttfvt.n) == (2, 0)
