"""The lines under the block: bounds, objectives, what counts rest on, and the figures that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from builders.made_cases import closed, run
from builders.made_records import make_record
from loadgen.figures.metrics import Metrics, compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.records.record import UNKNOWN, Record, Records
from loadgen.report import report, run_lines
from loadgen.report.run_directory import Result
from loadgen.report.run_lines import describe_token_counts, name_tokenizer
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("figure_lines")

_TTFT = "TTFT 50.00 ms (≤ 50.00 at 99 %)"
_TPOT = "TPOT 10.00 ms (≤ 10.00 at 99 %)"
_NO_TTFT, _NO_TPOT, _ITL = "TTFT 50.00 ms", "TPOT 10.00 ms", "ITL 10.00 ms"
_WHY = "ITL: no bound, since the gaps of one response are alike"


def result(requests: int, workload: dict[str, Any] | None = None) -> Result:
    """A run of so many requests, all alike."""
    case = run(closed()[:requests], requests=requests, workload=workload or {})
    return Result(case.facts, case.records)


@loop_over(("requests", "workload", "lines"), TABLES["bounds"])
def test_a_percentile_has_its_bound_from_enough_samples_on(
    requests: int, workload: dict[str, Any], lines: list[str]
) -> None:
    assert list(run_lines.describe_bounds(result(requests, workload), None)) == lines


@pytest.mark.parametrize(("slo", "line"), TABLES["objectives"])
def test_an_objective_is_met_missed_or_not_shown(slo: str, line: str) -> None:
    made = result(320, {"slo": slo})
    assert next(run_lines.describe_objectives(made, None)) == line
    for rendered in (report.render_report(made), report.render_short(made, "runs/r")):
        assert line in " ".join(rendered.split())


def test_without_goodput_the_limits_of_slo_count_good_requests() -> None:
    made = result(320, {"slo": "ttft p90 < 49ms, e2el p99 < 1000s"})
    assert made.metrics.slo_attainment == 0.0
    assert list(run_lines.describe_objectives(made, None))[-1] == (
        "goodput: of requests within ttft 49 ms, e2el 1e+06 ms (the limits of --slo)"
    )
    floor = list(run_lines.describe_objectives(result(320, {"slo": "tps_user p10 > 30"}), None))[-1]
    assert floor == "goodput: of requests within tps_user 30 tok/s (the limits of --slo)"
    given = result(320, {"slo": "ttft p90 < 49ms", "goodput": ("ttft:60",)})
    assert given.metrics.slo_attainment == 1.0
    assert len(list(run_lines.describe_objectives(given, None))) == 1


MS = 1_000_000


def measured(requests: int, tokens: int = 5, single: int = 0, ask: Any = (99.0,), **known: Any) -> Metrics:
    """Requests of so many messages of a token, the first `single` of them of one."""
    fields = {"usage": True, "finish_reason": "stop", **known}
    rows = []
    for i in range(requests):
        at_ns = np.arange(2, 3 if i < single else 2 + tokens) * MS
        rows.append(make_record(MS, at_ns, i, **{"output_tokens": len(at_ns), **fields}))
    return compute_metrics(Records.from_records(rows), MetricOptions(metric_percentiles=ask))


UNCOUNTED: Any = {"usage": False, "exact_tokens": False}


@loop_over(("known", "line"), TABLES["token_counts"])
def test_how_tokens_were_counted_is_one_line(known: Any, line: str) -> None:
    assert next(describe_token_counts(measured(4, **known), "/models/a")) == f"tokens: {line}"


def test_each_way_of_counting_has_its_share() -> None:
    metrics = compute_metrics(
        Records.from_records([*_rows(0, 2), *_rows(2, 1, **UNCOUNTED)]), MetricOptions()
    )
    assert list(describe_token_counts(metrics, "")) == [
        "tokens: 2 of 3 responses: as reported by the server in usage; "
        "1 of 3 responses: no usage: chunks were counted instead"
    ]


def _rows(first: int, count: int, **known: Any) -> list[Record]:
    fields = {"output_tokens": 2, "usage": True, "finish_reason": "stop", **known}
    return [make_record(MS, [2 * MS, 3 * MS], i, **fields) for i in range(first, first + count)]


def answer(index: int, at_ms: Sequence[int], visible: int = 0, **more: Any) -> Record:
    """A success sent at 1 s whose messages came `at_ms` later, the first visible one by its place."""
    arrival_ns = [(1000 + ms) * MS for ms in at_ms]
    usual = {"input_tokens": 100, "output_tokens": len(at_ms), "usage": True, "end_ns": max(arrival_ns)}
    visible_ns = UNKNOWN if visible < 0 else arrival_ns[visible]
    return make_record(1000 * MS, arrival_ns, index, visible_ns=visible_ns, **(usual | more))


def computed(*records: Record, **ask: Any) -> Metrics:
    return compute_metrics(Records.from_records(records), MetricOptions(**ask))


LOST = Failure(FailureKind.STALL, "")
PLAIN = answer(0, [100, 110, 120], finish_reason="length")
REASONS = answer(1, [100, 150, 200], visible=2, finish_reason="stop")


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
    run = computed(record)
    assert (run.prefill_speed.n, run.tps_user.n, run.e2el_per_token.n) == counts


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
    assert computed(*rows).prefill_behind == behind


def test_the_share_of_ttft_in_the_queue_is_of_those_that_report_it() -> None:
    run = computed(answer(0, [100, 200], server_queue_ns=25 * MS), answer(1, [300, 400]))
    assert run.prefill_queued == 0.25
    assert computed(PLAIN).prefill_queued is None


def test_however_many_finish_reasons_a_server_writes_few_are_kept() -> None:
    run = computed(*(answer(i, [100], finish_reason=f"reason {i // 2}") for i in range(100)))
    assert (len(run.finish_reasons), run.finish_reasons["other"]) == (17, 68)
    assert sum(run.finish_reasons.values()) == 100


@pytest.mark.parametrize(("gpus", "per_gpu"), [(0, None), (1, 25.0), (4, 6.25)])
def test_the_speed_per_gpu_needs_their_number(gpus: int, per_gpu: float | None) -> None:
    run = computed(answer(0, [100, 200, 300, 400, 120, 130, 140, 150, 160, 400]), gpus=gpus)
    assert run.output_throughput_per_gpu_per_s == per_gpu


def test_the_lines_have_each_figure_that_there_is() -> None:
    run = computed(PLAIN, REASONS, answer(2, [100, 300], visible=-1), gpus=2)
    assert list(run_lines.describe_more_figures(run)) == [
        "TTFVT (first visible token): 150.00 ms mean, 150.00 median; 1 of 3 responses have none: they ended "
        "within their reasoning",
        "per user: 41.7 tok/s mean, 5.0 least (after the first chunk); per GPU: 13.3 output tok/s; E2EL "
        "per output token: 85.56 ms mean",
        "prefill: 1,000 tok/s mean, 1,000 median (input tokens / TTFT); 3 of 3 requests were sent while "
        "another had no token yet",
        "finish reasons: length 1, stop 1, none 1",
    ]


@loop_over(
    ("given", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/models/Qwen3-8B", "Qwen3-8B"),
        ("/data/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0a1b", "Qwen/Qwen3-8B"),
        ("", ""),
    ],
)
def test_a_tokenizer_is_named_without_its_place(given: str, name: str) -> None:
    assert name_tokenizer(given) == name
