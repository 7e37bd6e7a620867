"""The run's window is the sum over engines by role: of counters that the test adds up itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders.loops import loop_over
from builders.required import require
from loadgen.features.routed.reconciled_roles import RoleScrapes, find_end, make_role_window, reconcile_roles
from loadgen.features.routed.role_scrapers import parse_metrics_urls
from loadgen.server.prometheus import MetricsSnapshot, Series, parse_metrics, select_lines
from loadgen.server.server_counters import ServerSample, ServerWindow

RECORDED = Path(__file__).parents[2] / "data" / "metrics"
NONE = MetricsSnapshot(error="/metrics does not answer")


def counted(
    requests: float, prompt: float, generated: float, names: str = "vllm", **gauges: float
) -> MetricsSnapshot:
    counters: dict[Series, float] = {
        ("m", "requests", "length"): requests,
        ("m", "prompt_tokens", ""): prompt,
        ("m", "generation_tokens", ""): generated,
        ("m", "prefix_queries", ""): prompt,
        ("m", "prefix_hits", ""): prompt / 2,
        ("m", "preemptions", ""): requests / 4,
        ("m", "ttft", "+Inf"): requests,
        ("m", "ttft", "sum"): requests / 10,
        ("m", "queue", "+Inf"): requests,
        ("m", "queue", "sum"): prompt / 1000,
        ("m", "itl", "+Inf"): generated,
        ("m", "itl", "sum"): generated / 100,
    }
    return MetricsSnapshot(names, counters, {("m", name, ""): value for name, value in gauges.items()})


def scrapes(role: str, host: str, after: MetricsSnapshot, **fields: Any) -> RoleScrapes:
    (place,) = parse_metrics_urls([f"{role}=http://{host}"])
    before = (
        MetricsSnapshot(after.names, dict.fromkeys(after.counters, 0.0))
        if not after.error
        else counted(0, 0, 0)
    )
    return RoleScrapes(**{"place": place, "before": before, "last": after, **fields})


def recorded(role: str, host: str, name: str) -> RoleScrapes:
    """A server that began with the run, and had a recorded exposition after it."""
    last = parse_metrics(select_lines(200, (RECORDED / f"{name}.txt").read_bytes()))
    (place,) = parse_metrics_urls([f"{role}=http://{host}"])
    return RoleScrapes(place=place, before=MetricsSnapshot(last.names), last=last)


def test_a_recorded_router_is_held_to_its_recorded_workers() -> None:
    every = [
        recorded("router", "f", "dynamo_frontend"),
        recorded("prefill", "p", "dynamo_prefill"),
        recorded("decode", "d", "dynamo_decode"),
    ]
    router = make_role_window(every[0], "")[0].window
    window = reconcile_roles(every)
    assert (router.finished, router.generation_tokens) == (8, 64)
    assert (require(window.itl).count, window.ttft) == (64 - 8, None)
    alone = reconcile_roles(every[:1])
    assert (alone.finished, alone.generation_tokens, alone.itl, alone.samples) == (8, None, None, ())


def test_prefill_and_decode_are_never_added() -> None:
    window = reconcile_roles(
        [
            scrapes("prefill", "p", counted(8, 80, 8)),
            scrapes("decode", "d", counted(5, 50, 500)),
            scrapes("decode", "e", counted(3, 30, 300)),
            scrapes("router", "r", counted(99, 0, 0, "other")),
        ],
        "m",
    )
    assert (window.finished, window.prompt_tokens, window.generation_tokens) == (8, 80, 800)
    assert (window.prefix_queries, window.prefix_hits, window.preemptions) == (80, 40, 4)
    assert (require(window.queue).count, require(window.itl).count, window.ttft) == (8, 800, None)


def test_a_server_that_could_not_be_scraped_is_named() -> None:
    good = scrapes("worker", "a", counted(8, 80, 800))
    (place,) = parse_metrics_urls(["worker=http://b"])
    lacking = RoleScrapes(place=place, before=NONE, last=NONE)
    assert reconcile_roles([good, lacking]) == ServerWindow(error="worker b:80: /metrics does not answer")
    (router,) = parse_metrics_urls(["router=http://r"])
    assert reconcile_roles([good, RoleScrapes(place=router, before=NONE, last=NONE)], "m").finished == 8


def sample(at_s: float, generated: float, running: float) -> tuple[float, MetricsSnapshot]:
    counters: dict[Series, float] = {("m", "generation_tokens", ""): generated}
    gauges = {("m", "running", ""): running, ("m", "kv_cache_usage", ""): running / 10}
    return at_s, MetricsSnapshot("vllm", counters, gauges)


def test_samples_are_joined_by_their_time_and_an_ended_one_has_none() -> None:
    often = [sample(at / 2, 100 * at, 4) for at in range(1, 9)]
    rarely = [sample(1.1, 150, 1), sample(3.1, 250, 2)]
    window = reconcile_roles(
        [
            scrapes("worker", "a", counted(8, 80, 800), samples=often),
            scrapes("worker", "b", counted(8, 80, 400), samples=rarely),
            scrapes("worker", "c", counted(1, 10, 100), samples=[sample(1.0, 90, 8)], ended_s=2.0),
        ],
        "m",
    )
    assert (window.generation_tokens, window.settled, window.reset) == (1300, False, False)
    assert window.samples == (
        ServerSample(at_s=1.1, running=13, kv_cache_usage=0.8),
        ServerSample(at_s=3.1, running=6, kv_cache_usage=0.4),
    )


@loop_over(
    ("samples", "after", "expected"),
    [
        ([sample(1, 10, 1), sample(2, 20, 1)], counted(3, 3, 30), (2, None, False)),
        ([sample(1, 10, 1), (2.0, NONE), sample(3, 20, 1)], counted(3, 3, 30), (2, None, False)),
        ([sample(1, 10, 1), (2.0, NONE), (3.0, NONE)], NONE, (1, 2.0, False)),
        ([(1.0, NONE), sample(2, 20, 1)], NONE, (1, 2, False)),
        ([], NONE, (0, 0.0, False)),
        ([sample(1, 10, 1), (2.0, NONE), sample(3, 5, 1)], counted(3, 3, 30), (1, 2.0, True)),
        ([sample(1, 10, 1), sample(2, 5, 1)], counted(3, 3, 30), (1, 2, True)),
        ([sample(1, 10, 1), sample(2, 20, 1)], counted(0, 0, 5), (2, 2, True)),
        ([sample(1, 10, 1), sample(2, 20, 1)], counted(9, 9, 90, "sglang"), (2, 2, True)),
    ],
)
def test_when_a_server_ended(
    samples: list[tuple[float, MetricsSnapshot]],
    after: MetricsSnapshot,
    expected: tuple[int, float | None, bool],
) -> None:
    end = find_end(scrapes("decode", "d", after, before=counted(0, 0, 0), samples=samples))
    kept, ended_s, restarted = expected
    why = "" if ended_s is None else after.error
    assert (end.ended_s, end.ended_why, end.restarted) == (ended_s, why, restarted)
    assert len(end.samples) == kept
