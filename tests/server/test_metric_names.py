"""What the expositions of engines, routers and wrappers become; each is taken for what it is of."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from builders.loops import loop_over
from loadgen.engines.engines import METRICS
from loadgen.server.prometheus import MetricsSnapshot, parse_metrics, select_lines
from loadgen.server.server_counters import ServerLatency, ServerWindow, make_window

RECORDED = Path(__file__).parents[1] / "data" / "metrics"
ZERO_OF_SGLANG = {
    **dict.fromkeys(("prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits"), 0),
    **dict.fromkeys(("preemptions", "drafts"), 0),
    "requests": {"": 0},
}
# Of each file its row, and what a window has of it: of a histogram the count and the mean in ms.
EXPOSITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "trtllm": (
        "trtllm",
        {
            "prompt_tokens": 240,
            "generation_tokens": 96,
            "requests": {"length": 5, "error": 2, "abort": 1},
            "prefix_queries": 240,
            "prefix_hits": 64,
            "draft_tokens": 40,
            "accepted_tokens": 30,
            "accepted_by_position": (20, 10),
            "accept_length": 2.5,
            "running_after": 3.0,
            "waiting_after": 2.0,
            "ttft": (6, 50.0),
            "e2e": (6, 416.666667),
            "queue": (6, 8.333333),
            "prefill": (6, 33.333333),
            "decode": (6, 300.0),
            "inference": (6, 333.333333),
            "kv_transfer_s": (4, 10.0),
            "kv_transfer_bytes": 2_400_000,
            "kv_transfers": 4,
        },
    ),
    "trtllm_dynamo": (
        "trtllm",
        {"requests": {"length": 2}, "ttft": (2, 33.9765), "e2e": (2, 865.0155), "queue": (2, 5.9075)},
    ),
    "trtllm_unprefixed": (
        "trtllm",
        {"requests": {"stop": 3}, "ttft": (3, 300.0), "e2e": (3, 1166.666667), "queue": (3, 10.0)},
    ),
    "lmdeploy": (
        "lmdeploy",
        {
            "prompt_tokens": 120,
            "generation_tokens": 24,
            "requests": {"finish": 3},
            "prefix_queries": 120,
            "prefix_hits": 48,
            "drafts": 4,
            "draft_tokens": 12,
            "accepted_tokens": 7,
            "accepted_by_position": (4, 2, 1),
            "running_after": 2.0,
            "waiting_after": 1.0,
            "ttft": (3, 50.0),
            "itl": (21, 12.0),
            "e2e": (3, 134.0),
            "queue": (3, 10.0),
            "prefill": (3, 30.0),
            "decode": (3, 84.0),
            "inference": (3, 114.0),
        },
    ),
    "tgi": (
        "tgi",
        {
            "prompt_tokens": 18_000,
            "generation_tokens": 12_500,
            "requests": {"": 148, "error": 2},
            "running_after": 5.0,
            "waiting_after": 3.0,
            "e2e": (148, 152.027027),
            "queue": (148, 10.135135),
            "inference": (148, 126.689189),
        },
    ),
    "dynamo_frontend": (
        "dynamo",
        {
            "prompt_tokens": 196,
            "generation_tokens": 64,
            "requests": {"success": 8, "error": 1},
            "prefix_queries": 196,
            "prefix_hits": 0,
            "running_after": 0.0,
            "waiting_after": 0.0,
            "ttft": (8, 79.062564),
            "itl": (56, 6.07793),
            "e2e": (9, 108.417754),
        },
    ),
    # Nine requests came to the worker, one of them the router's own.
    "dynamo_prefill": (
        "dynamo_worker",
        {"requests": {"": 8}, "running_after": 0.0, "e2e": (8, 70.562241)},
    ),
    # The engine's own names are there too, and are read.
    "dynamo_decode": (
        "vllm",
        {
            "preemptions": 0,
            "running_after": 0.0,
            "waiting_after": 0.0,
            "ttft": (8, 72.151653),
            "itl": (56, 6.063896),
            "e2e": (8, 114.602425),
        },
    ),
    "vllm_router": ("vllm_router", {"requests": {"": 12}, "running_after": 0.0}),
    "vllm_router_pd": ("vllm_router", {"requests": {"": 13}, "running_after": 0.0}),
    "production_stack": ("production_stack", {"requests": {"": 12}}),
    "smg": ("smg", {"requests": {"": 13}}),
    "smg_pd": ("smg", {"requests": {"": 13}}),
    "sgl_router": ("sgl_router", {"requests": {"": 8}, "ttft": (8, 40.0), "e2e": (8, 200.0)}),
    "llm_d": (
        "llm_d",
        {
            "prompt_tokens": 320,
            "generation_tokens": 128,
            "requests": {"": 8},
            "prefix_queries": 320,
            "prefix_hits": 96,
            "running_after": 4.0,  # of two priorities, which are no part of a whole here
            "waiting_after": 2.0,
            "ttft": (8, 93.75),
            "itl": (8, 156.25),
            "e2e": (8, 500.0),
            "queue": (8, 2.0),
        },
    ),
    "llm_d_router": ("llm_d", {"requests": {"": 4}, "running_after": 2.0, "e2e": (2, 805.0)}),
    "inference_extension": (
        "llm_d",
        {
            "prompt_tokens": 280,
            "generation_tokens": 112,
            "requests": {"": 7},
            "prefix_queries": 280,
            "prefix_hits": 70,
            "running_after": 2.0,
            "e2e": (7, 500.0),
        },
    ),
    "vllm_kv_transfer": (
        "vllm",
        {
            "running_after": 1.0,
            "kv_transfer_s": (8, 10.0),
            "kv_transfer_bytes": 16_777_216,
            "kv_transfers": 8,
            "kv_transfers_failed": 1,
        },
    ),
    "sglang_kv_transfer": (
        "sglang",
        {
            **ZERO_OF_SGLANG,
            "running_after": 2.0,
            "kv_transfer_s": (5, 12.1),
            "kv_transfer_bytes": 20 << 20,
            "kv_transfers": 5,
        },
    ),
    "sglang_kv_transfer_gauges": ("sglang", {**ZERO_OF_SGLANG, "running_after": 2.0}),
}


def load(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text("utf-8")


def read(text: str) -> MetricsSnapshot:
    return parse_metrics(select_lines(200, text.encode()))


def list_figures(window: ServerWindow) -> dict[str, Any]:
    """Everything that the server reported; of a histogram the count and the mean."""
    kept = {name: value for name, value in window if value is not None and value not in ((), {}, "")}
    for name in ("names", "models", "reset", "settled", "running_before", "waiting_before"):
        kept.pop(name, None)
    return {
        name: (value.count, round(value.mean_ms, 6)) if isinstance(value, ServerLatency) else value
        for name, value in kept.items()
    }


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


def test_a_bucket_in_milliseconds_is_one_in_seconds() -> None:
    snapshot = read(load("sglang_kv_transfer"))
    parts = [part for _, quantity, part in snapshot.counters if quantity == "kv_transfer_s"]
    assert parts == ["0.001", "0.0025", "0.1", "+Inf", "sum"]


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
