"""Shaped plans: a load over time is in the plan's offsets or limits, and classes in its lengths."""

from __future__ import annotations

from typing import Any

from loadgen.engines.engines import UNKNOWN
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed

SUBJECT, CHOSEN = ModelTarget(UNKNOWN, "m"), Seed(7, chosen=True)


def made(**keys: Any) -> Plan:
    """The plan of a profile of short random prompts."""
    return plan.make(profile.build({"name": "p", "input_len": 20, "output_len": 4, **keys}), SUBJECT, CHOSEN)


def test_a_schedule_of_rates_is_in_the_offsets_of_the_plan() -> None:
    shaped = made(num_prompts=None, schedule="rate 2 for 3s, 10 for 1s", burstiness=float("inf"))
    assert shaped.offsets_ns is not None
    assert shaped.offsets_ns.tolist() == [
        *range(0, 3 * 10**9, 5 * 10**8), *range(3 * 10**9, 4 * 10**9, 10**8),
    ]  # fmt: skip
    assert (shaped.concurrency, shaped.rate_per_s, shaped.sending_s) == (None, 4.0, 3.9)


def test_a_schedule_of_concurrency_is_the_limits_of_a_closed_loop() -> None:
    stepped = made(num_prompts=None, schedule="concurrency 1 to 2 over 4s, 8 for 1s")
    assert stepped.offsets_ns is None
    assert stepped.concurrency is not None
    assert stepped.concurrency.from_ns.tolist() == [0, 2 * 10**9, 4 * 10**9]
    assert stepped.concurrency.limits.tolist() == [1, 2, 8]
    assert stepped.profile.max_concurrency == 8
    assert stepped.profile.held_concurrency is None


def test_a_warm_up_has_a_constant_load() -> None:
    shaped = {"schedule": "concurrency 1 to 2 over 4s", "num_warmups": 3, "num_prompts": None}
    table = {"name": "p", "input_len": 20, "output_len": 4, **shaped}
    warmup = plan.make_warmup(profile.build(table), SUBJECT, CHOSEN)
    assert (warmup.offsets_ns, warmup.concurrency, len(warmup)) == (None, None, 3)


def test_each_request_of_a_mix_is_as_long_as_its_class() -> None:
    classes = [
        {"name": "a", "share": 50, "input_len": 30, "output_len": 3},
        {"name": "b", "share": 50, "input_len": 10, "output_len": 1},
    ]
    mix = plan.make(profile.build({"name": "p", "num_prompts": 40, "classes": classes}), SUBJECT, CHOSEN)
    pairs = {(len(mix.payload(i)["prompt"]), mix.payload(i)["max_tokens"]) for i in range(40)}
    assert pairs == {(30, 3), (10, 1)}
