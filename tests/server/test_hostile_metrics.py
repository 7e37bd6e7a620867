"""A /metrics that says what cannot be: each number is bounded, and the window is strict JSON all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.server.prometheus import MetricsSnapshot, parse_metrics, select_lines
from loadgen.server.server_counters import ServerWindow, make_window


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


@loop_over(
    ("before", "after", "said"),
    [
        pytest.param([], [f"{TOKENS} +Inf"], {"generation_tokens": None}, id="inf"),
        pytest.param([f"{TOKENS} 5"], [f"{TOKENS} +Inf"], {"reset": True}, id="inf later"),
        pytest.param([f"{TOKENS} +Inf"], [f"{TOKENS} 7"], {"generation_tokens": 7}, id="inf before"),
        pytest.param([], [f"{TOKENS} NaN"], {"generation_tokens": None}, id="nan"),
        pytest.param([], [f"{TOKENS} 1e300"], {"generation_tokens": None}, id="huge"),
        pytest.param([], [f"{TOKENS} {'9' * 400}"], {"generation_tokens": None}, id="400 digits"),
        pytest.param([], [f"{TOKENS} -5"], {"generation_tokens": None}, id="negative"),
        pytest.param(
            [],
            [f'{TOKENS}{{engine="{i}"}} {1 << 53}' for i in range(3)],
            {"generation_tokens": None},
            id="huge together",
        ),
        pytest.param([], ["vllm:kv_cache_usage_perc +Inf"], {"running_after": 0.0}, id="inf gauge"),
        pytest.param([], ["vllm:num_requests_waiting -1"], {"waiting_after": None}, id="negative gauge"),
        pytest.param([], [], {"requests": {}, "generation_tokens": None}, id="two gauges alone"),
        pytest.param(
            ['vllm:request_success_total{finished_reason="stop"} 3'] * 1,
            ['vllm:request_success_total{finished_reason="stop"} 3'],
            {"requests": {"": 0}},
            id="counted and none ended",
        ),
        pytest.param(
            [],
            ['vllm:request_success_total{finished_reason="a\\nb\x1b' + "x" * 999 + '"} 3'],
            {"requests": {"a b\ufffd" + "x" * 295 + "…": 3}},
            id="a reason that is a screen",
        ),
        pytest.param([], ["vllm:prefix_cache_hits_total 5"], {"prefix_hits": 5}, id="hits without queries"),
    ],
)
def test_a_number_that_cannot_be_is_left_out(
    before: list[str], after: list[str], said: dict[str, Any]
) -> None:
    found = make_window(snapshot(*before), snapshot(*after))
    assert {name: strict(found)[name] for name in said} == said


@loop_over(
    ("counts", "timed"),
    [
        pytest.param(GOOD, 4, id="whole"),
        pytest.param({**GOOD, "abc": "9"}, 4, id="a bound that is a word"),
        pytest.param({**GOOD, "nan": "9"}, 4, id="a bound that is none"),
        pytest.param({**GOOD, "-1": "0"}, 4, id="a negative bound"),
        pytest.param({**GOOD, "1e400": "9"}, 4, id="a bound beyond all"),
        pytest.param({**GOOD, "": "9"}, 4, id="an empty bound"),
        pytest.param({**GOOD, "sum": "9"}, 4, id="a bound that is called sum"),
        pytest.param({**GOOD, "total": "NaN"}, None, id="no sum"),
        pytest.param({**GOOD, "total": "+Inf"}, None, id="a sum beyond all"),
        pytest.param({"0.1": "9", "+Inf": "4", "total": "1"}, None, id="counts that fall"),
        pytest.param({"0.1": "1", "+Inf": "+Inf", "total": "1"}, 1, id="an endless count"),
    ],
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
