"""Shape figures: each stage and each class has the figures of its own requests, by stored facts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from builders import made_runs
from builders.loops import loop_over_named, read_tables
from builders.made_runs import MS, run
from loadgen.base.printing import Screen
from loadgen.base.structs import replace
from loadgen.figures.steady_state import Unsteady
from loadgen.plan import profile, random_prompts
from loadgen.plan.arrival import make_process
from loadgen.plan.plan import draw_cancellations
from loadgen.plan.request_sources import RandomStream, make_arrival_rng
from loadgen.records.record import Record, Records
from loadgen.report import report, request_rows, run_lines, shape_figures
from loadgen.report.result_block import find_layout
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.report.section import ReportOptions
from loadgen.report.shape_figures import describe_cancelled, divide_by_class
from loadgen.server.server_counters import ServerWindow
from loadgen.settings.load_settings import CancelPoint
from loadgen.transport.failure import USER_CANCELLED, Failure, FailureKind
from loadgen.verdict.evidence import RunEvidence

TABLES = read_tables("shape_figures")

BEGIN_NS = 10**12
STAGES = "rate 2 for 2s, 0 for 1s, 10 for 1s"
CLASSES = [
    {"name": "long", "share": "30%", "input_len": 64, "output_len": 2},
    {"name": "short", "share": "70%", "input_len": 8, "output_len": 2},
]


def answered(index: int, due_ns: int, late_ns: int = 0, first_ns: int = 100 * MS) -> Record:
    """A request of two tokens, the second 100 ms after the first."""
    sent_ns = BEGIN_NS + due_ns + late_ns
    arrival_ns = np.array([sent_ns + first_ns, sent_ns + first_ns + 100 * MS], np.int64)
    return Record(
        index, 0, BEGIN_NS + due_ns, sent_ns, int(arrival_ns[-1]), arrival_ns=arrival_ns,
        tokens=np.ones(2, np.int64), input_tokens=64, output_tokens=2, usage=True,
    )  # fmt: skip


def shaped(late_ns: int = 0, **keys: Any) -> Result:
    """A run whose requests were sent as its profile plans them, each `late_ns` later."""
    made = profile.build({"name": "made", "burstiness": math.inf, **keys})
    stream = RandomStream(7, made.name)
    count = made.num_prompts or round(made.mean_rate_per_s * (made.duration or 0))
    offsets_ns = make_process(made, count).offsets_ns(count, make_arrival_rng(stream))
    records = [answered(index, due_ns, late_ns) for index, due_ns in enumerate(offsets_ns.tolist())]
    return replace(run(profile=made, requests=count), records=Records.from_records(records))


def test_each_stage_has_the_requests_that_were_due_in_it() -> None:
    rows = shaped(schedule=STAGES).derive(shape_figures.divide_by_stage)
    assert [(row.name, row.begin_s, row.end_s, row.requests, row.rate_per_s) for row in rows] == [
        ("rate 2", 0.0, 2.0, 4, 2.0),
        ("rate 0", 2.0, 3.0, 0, 0.0),
        ("rate 10", 3.0, 4.0, 10, 10.0),
    ]
    # Each request takes 0.2 s, of which those of the last stage overlap with the next two.
    assert [row.mean_in_flight for row in rows] == pytest.approx([0.4, 0.0, 1.9])
    assert [row.most_in_flight for row in rows] == [1, 0, 2]
    assert [row.p99_ttft_ms for row in rows] == pytest.approx([100.0, math.nan, 100.0], nan_ok=True)
    assert [row.p99_e2el_ms for row in rows] == pytest.approx([200.0, math.nan, 200.0], nan_ok=True)


def test_a_late_request_belongs_to_the_stage_in_which_it_was_due() -> None:
    rows = shaped(late_ns=600 * MS, schedule=STAGES).derive(shape_figures.divide_by_stage)
    assert [row.requests for row in rows] == [4, 0, 10]
    assert [row.rate_per_s for row in rows] == [1.5, 1.0, 4.0]  # when they were sent
    assert rows[0].mean_ttft_ms == pytest.approx(100.0)
    assert rows[0].mean_ttft_intended_ms == pytest.approx(700.0)


def cut_off(end_s: float, late_ns: int = 0, **keys: Any) -> Result:
    """The same run, stopped at a time: what was sent before is cut off then, nothing is sent later."""
    whole, end_ns = shaped(late_ns, **keys), BEGIN_NS + round(end_s * 10**9)
    records = [answered(index, due_ns, late_ns) for index, due_ns in _due(whole)]
    sent = [record for record in records if record.sent_ns < end_ns]
    for record in sent:
        record.end_ns = min(record.end_ns, end_ns)
    return replace(
        whole,
        facts=replace(whole.facts, interrupted=True, cut_short="Ctrl-C"),
        records=Records.from_records(sent),
    )


STOPPED: list[tuple[float, list[tuple[str, float, int, float]], list[str]]] = [
    # Cut off in the middle of a response: the second request's of the first stage.
    (0.6, [("rate 2", 0.6, 2, 2 / 0.6)], ["rate 0", "rate 10"]),
    # In the pause: the next request would have followed at its end, the last response has ended before.
    (2.5, [("rate 2", 1.7, 4, 4 / 1.7)], ["rate 0", "rate 10"]),
    (3.45, [("rate 2", 2.0, 4, 2.0), ("rate 0", 3.0, 0, 0.0), ("rate 10", 3.45, 5, 5 / 0.45)], []),
    (9.0, [("rate 2", 2.0, 4, 2.0), ("rate 0", 3.0, 0, 0.0), ("rate 10", 4.0, 10, 10.0)], []),
]


@pytest.mark.parametrize(("end_s", "rows", "missing"), STOPPED)
def test_the_stages_of_a_stopped_run_end_where_it_did(
    end_s: float, rows: list[tuple[str, float, int, float]], missing: list[str]
) -> None:
    result = cut_off(end_s, schedule=STAGES)
    found = [
        (row.name, row.end_s, row.requests, row.rate_per_s)
        for row in result.derive(shape_figures.divide_by_stage)
    ]
    assert [row[:3] for row in found] == [row[:3] for row in rows]
    assert [row[3] for row in found] == pytest.approx([row[3] for row in rows])
    assert shape_figures.list_unreached(result.facts, result.derive(shape_figures.divide_by_stage)) == missing


def test_a_stopped_closed_loop_ends_when_its_next_request_was_due() -> None:
    keys = {"schedule": "concurrency 4 for 9s, 8 for 9s", "max_concurrency": 8, "num_prompts": 24}
    made = run(profile=profile.build({"name": "made", **keys}), cut_short="Ctrl-C", interrupted=True)
    (row,) = made.derive(shape_figures.divide_by_stage)
    ends_ns = np.sort(made.records.end_ns[made.records.end_ns > made.records.sent_ns.max()])
    assert row.end_s == pytest.approx((ends_ns[0] - made.records.intended_ns.min()) / 10**9)
    assert row.mean_in_flight == pytest.approx(4.0, rel=0.02)  # the drain is no part of it
    assert shape_figures.list_unreached(made.facts, made.derive(shape_figures.divide_by_stage)) == [
        "concurrency 8"
    ]


def _due(of: Result) -> list[tuple[int, int]]:
    due_ns = (of.records.intended_ns - BEGIN_NS).tolist()
    return list(zip(of.records.index.tolist(), due_ns, strict=True))


def test_a_ramp_of_concurrency_is_read_in_quarters() -> None:
    keys = {"schedule": "concurrency 1 to 8 over 4s", "max_concurrency": 8, "num_prompts": 24}
    names = [
        row.name
        for row in run(profile=profile.build({"name": "made", **keys})).derive(shape_figures.divide_by_stage)
    ]
    assert names == [f"concurrency {2 * part + 1} to {2 * part + 2}" for part in range(4)]


def test_a_ramp_is_no_trend_of_the_server() -> None:
    result = shaped(schedule=STAGES)
    evidence = RunEvidence(result.facts, result.records, result.metrics)
    assert (evidence.uneven, evidence.facts.profile.open_loop, evidence.closed_loop) == (True, True, False)
    assert evidence.tpot_trend() is None
    assert evidence.first_tpot() is None


def test_a_ramp_of_requests_is_read_in_quarters() -> None:
    keys: dict[str, Any] = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 40.0}
    rows = shaped(num_prompts=40, **keys).derive(shape_figures.divide_by_stage)
    assert [row.requests for row in rows] == [10, 10, 10, 10]
    assert [row.name for row in rows] == [
        "rate 1 to 10", "rate 11 to 20", "rate 21 to 30", "rate 31 to 40",
    ]  # fmt: skip
    assert rows[-1].rate_per_s == pytest.approx(10 / sum(1 / rate for rate in [*range(32, 41), 40]))


def test_a_load_that_changes_has_no_steady_state() -> None:
    steady = shaped(schedule=STAGES).steady
    assert steady == Unsteady(f"the load changes ({STAGES})")
    assert run().derive(shape_figures.divide_by_stage) == []


def test_lateness_is_a_distribution_over_all_that_was_sent() -> None:
    records = Records.from_records([answered(i, 0, late_ns=i * MS) for i in range(101)])
    assert run_lines.describe_lateness(records) == "50.00 ms mean, 50.00 P50, 99.00 P99, 100.00 max"
    assert run_lines.describe_lateness(Records.from_records([])) == ""


@loop_over_named(("keys", "late", "line"), TABLES["rates"])
def test_rates_that_differ_are_shown(keys: dict[str, Any], late: float, line: list[str]) -> None:
    """`late`: by how much longer than planned sending took, as a share."""
    made = shaped(**keys) if "max_concurrency" not in keys else run(profile=profile.build(keys))
    records = made.records
    late_ns = ((records.intended_ns - BEGIN_NS) * late).astype(np.int64)
    held = replace(made, records=replace(records, sent_ns=records.intended_ns + late_ns))
    options = ReportOptions(explain=False, layout=find_layout(""))
    assert list(run_lines.describe_rates(held, options)) == line


def mixed() -> Result:
    """Two classes, of which the short ones answer sooner; one long one fails, one short one is cancelled."""
    keys: dict[str, Any] = {"cancel_rate": "2%", "cancel_after": "2tok", "goodput": ["ttft:80"]}
    made = shaped(request_rate=10.0, num_prompts=50, classes=CLASSES, **keys)
    numbers = random_prompts.draw_classes(made.facts.profile.classes, RandomStream(7, "made"), 50)
    records = [answered(i, i * 100 * MS, first_ns=(100, 50)[kind] * MS) for i, kind in enumerate(numbers)]
    records[numbers.tolist().index(0)].failure = Failure(FailureKind.TRUNCATED, "cut")
    records[numbers.tolist().index(1)].failure = USER_CANCELLED
    return replace(made, records=Records.from_records(records))


def test_each_class_has_figures_of_its_own_requests() -> None:
    result = mixed()
    long, short = result.derive(shape_figures.divide_by_class)
    assert long.requests + short.requests == 50
    assert (long.failed, short.failed) == (1, 0)
    assert (long.cancelled, short.cancelled) == (0, 1)
    assert (long.mean_ttft_ms, short.mean_ttft_ms) == pytest.approx((100.0, 50.0))
    assert (long.p99_e2el_ms, short.p99_e2el_ms) == pytest.approx((200.0, 150.0))
    assert (long.good, short.good) == (0, short.requests - 1)
    assert (long.completed, short.completed) == (long.requests - 1, short.requests - 1)
    assert long.input_tokens == 64 * (long.requests - 1)
    assert [row["name"] for row in encode_run(result)["loadgen"]["by_class"]] == ["long", "short"]


def test_each_exported_row_has_its_class() -> None:
    result = mixed()
    rows = [row["class"] for batch in request_rows.list_rows(result) for row in batch]
    assert [rows.count(row.name) for row in result.derive(shape_figures.divide_by_class)] == [
        row.requests for row in result.derive(shape_figures.divide_by_class)
    ]


def test_vllms_keys_of_a_ramp_are_those_vllm_writes() -> None:
    keys: dict[str, Any] = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 40.0}
    result = shaped(num_prompts=40, **keys)
    assert {key: encode_run(result)[key] for key in keys} == keys
    assert "ramp-up-linear-1qps-40qps" in result.filename()
    assert "ramp_up_strategy" not in encode_run(run())


# The tables by stage and by class in every report.


REPORTS: dict[str, Callable[[Result], str]] = {
    "the whole one": report.render_report,
    "the short one": lambda result: report.render_short(result, "runs/r"),
    "the short one, in a narrow terminal": lambda result: report.render_short(result, "r", screen=Screen(60)),
}
EVERY_REPORT = pytest.mark.parametrize("name", REPORTS)


@EVERY_REPORT
def test_a_load_that_changes_has_its_table_and_no_steady_state(name: str) -> None:
    lines = REPORTS[name](shaped(schedule=STAGES)).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("Stage "))
    under = next(n for n, line in enumerate(lines) if line.startswith("-----") and n > at) + 1
    assert [line[:8].strip() for line in lines[under : under + 3]] == ["rate 2", "rate 0", "rate 10"]
    assert max(map(len, lines)) <= 80
    assert f"steady state: none: the load changes ({STAGES})" in " ".join(" ".join(lines).split())


@EVERY_REPORT
def test_classes_have_their_table_with_cancelled_and_good_requests(name: str) -> None:
    result = mixed()
    long, short = result.derive(divide_by_class)
    lines = REPORTS[name](result).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("Class "))
    under = next(n for n, line in enumerate(lines) if line.startswith("-----") and n > at) + 1
    assert [line.split()[0] for line in lines[under : under + 2]] == ["long", "short"]
    assert " ".join(map(str.strip, lines[under + 2 :])).startswith(
        f"cancelled by class: long 0 of {long.requests}, short 1 of {short.requests} requests "
        f"goodput by class: long 0 of {long.requests}, short {short.requests - 1} of {short.requests - 1} "
        "requests met the objectives"
    )


@EVERY_REPORT
def test_a_stopped_run_names_the_stages_that_it_did_not_reach(name: str) -> None:
    assert "\nnot reached: rate 0, rate 10\n" in REPORTS[name](cut_off(0.6, schedule=STAGES))
    assert "not reached" not in REPORTS[name](shaped(schedule=STAGES))


# The lines of cancelled requests.


REQUESTS = 40
UNUSED: Any = None  # how the report is to be


def cancelled(after: str, counted: dict[str, int] | None = None) -> Result:
    """A run in which every chosen request but the first was cancelled, 100 ms after it was sent."""
    made = made_runs.run(requests=REQUESTS)
    workload = made.facts.profile.model_copy(update={"cancel_rate": "25%", "cancel_after": after})
    stream = RandomStream(made.facts.seed, workload.name, made.facts.repeat)
    chosen = np.flatnonzero(draw_cancellations(0.25, CancelPoint(after_ns=1), stream, REQUESTS).chosen)
    records = made_runs.answers(REQUESTS, 16, 4, 1.0, 0)
    for index in chosen[1:]:
        record = records[index]
        record.failure = USER_CANCELLED
        record.arrival_ns, record.tokens = record.arrival_ns[:2], record.tokens[:2]
        due_ns = int(record.arrival_ns[-1]) if after.endswith("tok") else record.sent_ns + 100 * MS
        record.end_ns = due_ns + MS // 2
    window = ServerWindow(names="vllm", requests=counted) if counted else None
    facts = replace(made.facts, profile=workload, window=window)
    return Result(facts, Records.from_records(records))


@pytest.mark.parametrize("after", ["100ms", "2tok"])
def test_those_cancelled_are_counted_of_those_planned(after: str) -> None:
    run = cancelled(after)
    count, point = run.metrics.cancelled, run.facts.profile.cancel_point
    assert count > 4
    assert [*describe_cancelled(run, UNUSED)] == [
        f"cancelled as planned: {count} of {count + 1} (25 % of the requests) after {point}, "
        "0.50 ms late on average",
        "not cancelled: 1 of these ended before, or failed",
        f"figures are of the {REQUESTS - count} requests that completed",
    ]


@pytest.mark.parametrize(
    ("aborted", "finished", "words"),
    [
        (8, 0, "the server counts 8 aborted requests"),
        (0, 0, "the server counts no abort, and finished none of the"),
        (0, 3, None),  # the doubt `no-abort` has it
    ],
)
def test_the_servers_own_count_is_next_to_it(aborted: int, finished: int, words: str | None) -> None:
    completed = cancelled("100ms").metrics.completed
    run = cancelled("100ms", {"length": completed + finished} | ({"abort": aborted} if aborted else {}))
    lines = [*describe_cancelled(run, UNUSED)][3:]
    assert [words in line for line in lines if words] == ([True] if words else [])
    assert len(lines) == (words is not None)


def test_a_run_that_cancels_none_has_no_line() -> None:
    assert [*describe_cancelled(made_runs.run(), UNUSED)] == []
