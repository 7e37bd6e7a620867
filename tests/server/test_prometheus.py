"""What is read out of `/metrics`, and what is said where it cannot be."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.engines.engine import EngineMetrics, MetricSeries, name_histogram
from loadgen.engines.engines import METRICS
from loadgen.server.prometheus import (
    SAMPLED,
    MetricLines,
    MetricsSnapshot,
    parse_metrics,
    select_lines,
)
from loadgen.server.server_counters import ServerLatency, ServerWindow, make_window

TABLES = read_tables("prometheus")

RECORDED = Path(__file__).parents[1] / "data" / "metrics"
ELSEWHERE = ", not Prometheus text (trtllm's is at /prometheus/metrics)"
# Of each exposition its row, and what a window has of it: of a histogram the count and the mean in ms.
EXPOSITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    path.stem: tuple(json.loads(path.read_text("utf-8")).values())
    for path in sorted((Path(__file__).parent / "expected" / "metrics").glob("*.json"))
}


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.txt").read_bytes()


def read(text: str) -> MetricsSnapshot:
    return parse_metrics(select_lines(200, text.encode()))


@loop_over(
    ("name", "gauges"),
    TABLES["gauges"],
)
def test_the_gauges_of_a_recorded_exposition_are_read(name: str, gauges: dict[str, float]) -> None:
    snapshot = parse_metrics(select_lines(200, recorded(name)))
    assert {gauge: snapshot.gauge(gauge) for gauge in gauges} == gauges
    assert snapshot.names == name.partition("_")[0]


def test_a_sample_in_the_run_is_a_few_lines_of_what_moves() -> None:
    selection = select_lines(200, recorded("vllm_loaded"), SAMPLED)
    assert len(selection.lines) == 6
    snapshot = parse_metrics(selection)
    assert (snapshot.gauge("running"), list(snapshot.counters.values())) == (4, [0, 7385])


@loop_over(
    ("status", "body", "error"),
    TABLES["no expositions"],
)
def test_what_is_no_exposition_is_told_in_words(status: int, body: str, error: str) -> None:
    assert parse_metrics(select_lines(status, body.encode("latin-1"))) == MetricsSnapshot(error=error)


@loop_over("labels", ['{engine="0",model_name="a b",le="0.5"}', '{model_name="\\"}"}', "{}", ""])
def test_no_piece_of_a_line_raises(labels: str) -> None:
    line = f"vllm:e2e_request_latency_seconds_bucket{labels} 17.5"
    for end in range(len(line) + 1):
        snapshot = parse_metrics(
            MetricLines("vllm", (line[:end],)) if "bucket" in line[:end] else select_lines(200, b"")
        )
        assert snapshot.error or snapshot.names == "vllm"


@loop_over_named(("lines", "gauges", "counters"), TABLES["together"])
def test_series_of_one_server_are_put_together(
    lines: list[str], gauges: dict[str, float], counters: dict[str, float]
) -> None:
    snapshot = read("".join(f"{line}\n" for line in lines))
    assert {gauge: snapshot.gauge(gauge) for gauge in gauges} == gauges
    assert {f"{model} {name}": count for (model, name, _), count in snapshot.counters.items()} == counters


def test_each_model_is_counted_apart() -> None:
    snapshot = read(
        'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 2\n'
    )
    assert [snapshot.gauge("running", model) for model in ("a", "b", "")] == [1, 2, 3]


_FOREIGN = EngineMetrics(
    "foreign",
    {
        "foreign_requests_total": MetricSeries("requests", label="why"),
        **name_histogram("foreign_wait_ms", "queue", 0.001),
    },
    marks=("foreign_",),
    path="/elsewhere/metrics",
    model_label="model",
    only={"endpoint": "generate"},
    reasons={"cancel": "abort"},
)


def test_a_row_says_how_its_labels_and_units_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "foreign", _FOREIGN)
    snapshot = read(
        'foreign_requests_total{endpoint="generate",model="m",why="Kind.CANCEL"} 1\n'
        'foreign_requests_total{endpoint="generate",model="m",why="stop"} 3\n'
        'foreign_requests_total{endpoint="load_lora",model="m",why="stop"} 9\n'
        'foreign_requests_total{model="n"} 2\n'
        "foreign_wait_ms 7\n"  # the gauge that it once was
        'foreign_wait_ms_bucket{le="2.5"} 1\n'
        'foreign_wait_ms_bucket{le="Inf"} 2\n'
        "foreign_wait_ms_sum 9\n"
    )
    assert snapshot == MetricsSnapshot(
        "foreign",
        {
            ("m", "requests", "abort"): 1,
            ("m", "requests", "stop"): 3,
            ("n", "requests", ""): 2,
            ("", "queue", "0.0025"): 1,
            ("", "queue", "Inf"): 2,
            ("", "queue", "sum"): 9 * 0.001,
        },
    )
    both = read("foreign_requests_total 1\nvllm:num_requests_running 1\n")  # an engine, and what wraps it
    assert (both.names, both.counters, both.gauge("running")) == ("vllm", {}, 1)
    assert read("[]").error == f"/metrics is JSON{ELSEWHERE[:-1]} and foreign's is at /elsewhere/metrics)"


def snapshot(*lines: str) -> MetricsSnapshot:
    return parse_metrics(
        select_lines(200, "".join(f"{line}\n" for line in ("vllm:num_requests_running 0", *lines)).encode())
    )


def histogram(**counts: str) -> tuple[str, ...]:
    """Lines of a TTFT histogram, a bound each; `total` is its sum."""
    name = "vllm:time_to_first_token_seconds"
    return tuple(
        f"{name}_sum {value}" if bound == "total" else f'{name}_bucket{{le="{bound}"}} {value}'
        for bound, value in counts.items()
    )


def strict(found: ServerWindow) -> dict[str, Any]:
    """What a result file holds of it; raises where JSON cannot."""
    return dict(json.loads(json.dumps(found.model_dump(), allow_nan=False)))


TOKENS = "vllm:generation_tokens_total"
GOOD = {"0.1": "1", "+Inf": "4", "total": "0.8"}


@loop_over_named(
    ("before", "after", "said"),
    TABLES["numbers that cannot be"],
)
def test_a_number_that_cannot_be_is_left_out(
    before: list[str], after: list[str], said: dict[str, Any]
) -> None:
    found = make_window(snapshot(*before), snapshot(*after))
    assert {name: strict(found)[name] for name in said} == said


@loop_over_named(
    ("counts", "timed"),
    TABLES["histograms"],
)
def test_a_histogram_that_cannot_be_has_no_figures(counts: dict[str, str], timed: int | None) -> None:
    ttft = strict(make_window(snapshot(), snapshot(*histogram(**counts))))["ttft"]
    assert (None if ttft is None else ttft["count"]) == timed
    if ttft is not None:
        assert ttft["mean_ms"] >= 0


def test_a_bucket_without_a_bound_is_left_out() -> None:
    lines = (*histogram(**GOOD), "vllm:time_to_first_token_seconds_bucket 9")
    assert strict(make_window(snapshot(), snapshot(*lines)))["ttft"]["count"] == 4


def test_a_sum_that_fell_gives_no_mean() -> None:
    early, late = histogram(**{**GOOD, "total": "9"}), histogram(**{"0.1": "5", "+Inf": "8", "total": "2"})
    found = make_window(snapshot(*early), snapshot(*late))
    assert (found.reset, found.ttft) == (False, None)


@loop_over(
    ("text", "error"),
    [
        (f'{TOKENS}{{model_name="{"x" * 3000}"}} 1\n', "/metrics has a line of 3045 characters"),
        (f"{TOKENS} 1\n" * 20_001, "/metrics has 20001 lines of vllm's: too many to be read"),
        (
            (f'{TOKENS}{{a="{"x" * 1900}"}} 1\n') * 2300,
            "/metrics has 2300 lines of vllm's: too many to be read",
        ),
    ],
)
def test_what_would_take_long_to_parse_is_not_parsed(text: str, error: str) -> None:
    assert select_lines(200, text.encode()).error.startswith(error)


def test_models_and_reasons_are_few() -> None:
    lines = [
        f'vllm:request_success_total{{model_name="m{i}",finished_reason="r{i}"}} {i + 1}' for i in range(300)
    ]
    found = make_window(snapshot(), snapshot(*lines))
    assert (len(found.models), len(found.requests), max(found.requests.values())) == (100, 100, 300)


def load(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text("utf-8")


def list_figures(window: ServerWindow) -> dict[str, Any]:
    """Everything that the server reported; of a histogram the count and the mean."""
    kept = {name: value for name, value in window if value is not None and value not in ((), {}, "")}
    for name in ("names", "models", "reset", "settled", "running_before", "waiting_before"):
        kept.pop(name, None)
    figures = {
        name: (value.count, round(value.mean_ms, 6)) if isinstance(value, ServerLatency) else value
        for name, value in kept.items()
    }
    return dict(json.loads(json.dumps(figures)))  # lists for tuples, as in the files


@loop_over("name", EXPOSITIONS)
def test_every_quantity_of_an_exposition_is_read(name: str) -> None:
    row, figures = EXPOSITIONS[name]
    snapshot = read(load(name))
    assert (snapshot.error, snapshot.names) == ("", row)
    assert list_figures(make_window(MetricsSnapshot(row), snapshot)) == figures


def double(text: str) -> str:
    """A later scrape: every counter and sum is twice what it was."""
    return re.sub(r"(?m)^([^#\s].*) (\S+)$", lambda found: f"{found[1]} {2 * float(found[2])}", text)


@loop_over("name", EXPOSITIONS)
def test_a_window_is_what_moved_between_two_scrapes(name: str) -> None:
    figures = EXPOSITIONS[name][1]
    gauges = {"running_after", "waiting_after", "accept_length"} & figures.keys()
    moved = list_figures(make_window(read(load(name)), read(double(load(name)))))
    assert moved == figures | {gauge: 2 * figures[gauge] for gauge in gauges}


@loop_over("name", [path.stem for path in sorted(RECORDED.glob("*.txt"))])
def test_no_row_takes_another_ones_exposition(name: str) -> None:
    row = EXPOSITIONS[name][0] if name in EXPOSITIONS else name.partition("_")[0]
    found = [
        each.name
        for each in METRICS.values()
        if any(line.startswith(each.marks) for line in load(name).splitlines())
    ]
    # What wraps an engine, or takes its prefix, has the engine's marks as well.
    wrapped = {"dynamo_decode": ["dynamo_worker"], "trtllm_dynamo": ["dynamo_worker"]}
    wrapped |= {"production_stack": ["vllm"], "dynamo_frontend": ["dynamo_worker"]}
    assert found == [row, *wrapped.get(name, [])]


def test_every_row_has_an_exposition_with_its_source() -> None:
    assert {row for row, _ in EXPOSITIONS.values()} >= METRICS.keys() - {"llamacpp"}
    assert [name for name in EXPOSITIONS if "Apache-2.0" not in load(name).splitlines()[0]] == []


@loop_over("name", EXPOSITIONS)
def test_values_that_cannot_be_leave_the_others_as_they_are(name: str) -> None:
    text = load(name)
    found = read(text)
    samples = [line for line in text.splitlines() if not line.startswith("#") and " " in line]
    impossible = "".join(
        f"{line.rpartition(' ')[0]} {value}\n" for line in samples for value in ("NaN", "-1")
    )
    assert read(text + impossible + "\n".join(samples) + "\n") == found  # every series twice, and none


def test_ten_megabytes_are_searched_at_once() -> None:
    for text in (load("tgi"), "up 1\n"):
        began_s = time.perf_counter()
        selection = select_lines(200, ("a_metric_of_nothing_known 1\n" * 400_000 + text).encode())
        assert bool(selection.error) == (text == "up 1\n")
        assert time.perf_counter() - began_s < 5
