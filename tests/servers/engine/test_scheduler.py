"""The engine's scheduler and step-time formula, in virtual time."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.required import require
from builders.virtual_engine import TURNAROUND_NS, closed_loop, open_loop
from loadgen_servers.engine.messages import CHOICES, Dialect, ResponseOptions, reply_for
from loadgen_servers.engine.metrics import Metrics
from loadgen_servers.engine.scheduler import DraftedSteps, Limits, Scheduler, Sequence, StepOutput, draw_steps
from loadgen_servers.engine.step_times import Age, FittedTiming, UnsteadyTiming, Work

MS = 1_000_000
CHANCES = (0.8, 0.7, 0.5)
LENGTH = 1 + 0.8 + 0.8 * 0.7 + 0.8 * 0.7 * 0.5


@loop_over_named(("timing", "work", "step_ns"), read_tables("engine_scheduler")["step times"])
def test_step_time_is_the_documented_formula(
    timing: dict[str, float], work: dict[str, int], step_ns: int
) -> None:
    none = {"decodes": 0, "prefill_tokens": 0, "kv_tokens": 0, "attended_pairs": 0}
    assert FittedTiming(**timing).step_ns(Work(**(none | work)), Age(0, 0)) == step_ns


@loop_over_named(
    ("cold", "age", "step_ms"),
    {
        "as good as steady": ((), Age(0, 0), 10),
        "the last cold step": ((5.0, 3), Age(2, 0), 15),
        "the first warm step": ((5.0, 3), Age(3, 0), 10),
        "10 % slower each second": ((0.0, 0, 0.1), Age(9, 5_000_000_000), 15),
    },
)
def test_an_unsteady_machine_is_slower_by_its_age(cold: tuple[Any, ...], age: Age, step_ms: int) -> None:
    timing = UnsteadyTiming(FittedTiming(overhead_ms=10.0), *cold)
    assert timing.step_ns(Work(1, 0, 0, 0), age) == step_ms * MS


def test_the_first_wave_on_a_cold_machine_is_the_outlier() -> None:
    timing = UnsteadyTiming(FittedTiming(overhead_ms=1.0), cold_ms=100.0, cold_steps=1, slowdown_per_s=1.0)
    scheduler = Scheduler(Limits(8, 100, 1000), timing)
    for _ in range(3):
        scheduler.add(sequence(10, 2))
    started_ns = 3600_000 * MS
    first = require(scheduler.begin(started_ns))
    assert first.end_ns - started_ns == 101 * MS
    scheduler.end(first, first.end_ns)
    second = require(scheduler.begin(first.end_ns))
    assert second.end_ns - second.start_ns == 1_101_000


def engine(seqs: int = 8, batched: int = 100, kv: int = 1000) -> Scheduler:
    return Scheduler(Limits(seqs, batched, kv), FittedTiming(overhead_ms=1.0))


def sequence(prompt: int, output: int, name: str = "", max_tokens: int = 0) -> Sequence:
    return Sequence(prompt, output, prompt + (max_tokens or output), arrived_ns=0, owner=name)


def names(ended: StepOutput) -> tuple[list[object], list[object], list[object]]:
    decoded, first, finished = (
        [s.owner for s in group] for group in (ended.decoded, ended.first, ended.finished)
    )
    return decoded, first, finished


def run(scheduler: Scheduler, now_ns: int = 0) -> tuple[Work, StepOutput]:
    step = require(scheduler.begin(now_ns))
    return step.work, scheduler.end(step, step.end_ns)


def test_nothing_to_do_is_no_step() -> None:
    assert engine().begin(0) is None


def test_the_first_token_ends_the_last_chunk_then_one_a_step() -> None:
    scheduler = engine()
    scheduler.add(sequence(250, 3, "a"))
    works, tokens = zip(*(run(scheduler) for _ in range(5)), strict=True)
    assert [w.prefill_tokens for w in works] == [100, 100, 50, 0, 0]
    assert [w.decodes for w in works] == [0, 0, 0, 1, 1]
    assert [w.kv_tokens for w in works] == [0, 0, 0, 251, 252]
    assert [w.attended_pairs for w in works] == [5050, 15_050, 50 * 200 + 1275, 0, 0]
    assert [names(t) for t in tokens] == [
        ([], [], []), ([], [], []), ([], ["a"], []), (["a"], [], []), ([], [], ["a"]),
    ]  # fmt: skip
    assert scheduler.begin(0) is None
    assert (scheduler.cache.in_use, scheduler.kv_context, scheduler.running) == (0, 0, 0)


def test_decodes_come_first_and_prefill_takes_what_the_budget_leaves() -> None:
    scheduler = engine()
    scheduler.add(sequence(60, 9, "a"))
    scheduler.add(sequence(60, 9, "b"))
    scheduler.add(sequence(60, 9, "c"))
    works = [run(scheduler)[0] for _ in range(3)]
    # 60 + 40; one decode, the 20 left of b, 60 of c; three decodes
    assert [(w.decodes, w.prefill_tokens) for w in works] == [(0, 100), (1, 80), (3, 0)]


def test_a_single_token_answer_is_first_and_last_at_once() -> None:
    scheduler = engine()
    scheduler.add(sequence(10, 1, "a"))
    _, ended = run(scheduler)
    assert names(ended) == ([], [], ["a"])
    assert scheduler.running == 0


WAITS = {
    "sequence slots": (engine(seqs=2), [10, 10, 10], 2),
    "KV for prompt and output": (engine(kv=60), [30, 10, 10], 2),
    "order of arrival, even when a later one would fit": (engine(kv=40), [30, 20, 5], 1),
}


@loop_over(("scheduler", "prompts", "admitted"), WAITS.values())
def test_requests_wait_for(scheduler: Scheduler, prompts: list[int], admitted: int) -> None:
    for prompt in prompts:
        scheduler.add(sequence(prompt, 5))
    run(scheduler)
    assert (scheduler.running, len(scheduler.waiting)) == (admitted, len(prompts) - admitted)
    while scheduler.running:
        run(scheduler)
    assert scheduler.cache.in_use == 0


def test_the_reservation_is_for_max_tokens_not_for_an_early_end() -> None:
    scheduler = engine(kv=100)
    scheduler.add(sequence(20, 5, max_tokens=60))
    run(scheduler)
    assert scheduler.cache.in_use == 80


@loop_over("steps", [0, 1, 2, 4])
def test_an_aborted_request_frees_its_kv_and_produces_no_more(steps: int) -> None:
    scheduler = engine()
    scheduler.add(sequence(10, 6, "kept"))
    victim = sequence(150, 6, "gone")
    scheduler.add(victim)
    for _ in range(steps):
        run(scheduler)
    scheduler.abort(victim)
    owners: list[object] = []
    while True:
        step = scheduler.begin(0)
        if step is None:
            break
        owners += [owner for group in names(scheduler.end(step, 0)) for owner in group]
    assert set(owners) <= {"kept"}
    assert (scheduler.cache.in_use, scheduler.kv_context) == (0, 0)


def test_an_abort_while_a_step_is_under_way_leaves_its_chunk_behind() -> None:
    scheduler = engine()
    victim = sequence(10, 6)
    scheduler.add(victim)
    step = require(scheduler.begin(0))
    scheduler.abort(victim)
    assert names(scheduler.end(step, step.end_ns)) == ([], [], [])
    assert scheduler.begin(step.end_ns) is None


def test_closed_loop_keeps_its_concurrency_and_counts_every_gap() -> None:
    outcome = closed_loop(engine(batched=1000, kv=10_000), [(10, 5)] * 6, concurrency=2, turnaround_ns=0)
    # three waves of two, five steps of a millisecond each
    assert outcome.duration_ns == 15 * MS
    assert outcome.output_tokens == 30
    assert outcome.gaps == {MS: 24}
    assert outcome.mean_ttft_ns == MS
    assert outcome.mean_tpot_ns == MS


def test_a_thousand_sequences_take_one_step_a_token() -> None:
    scheduler = Scheduler(Limits(1024, 65_536, 1 << 20), FittedTiming(overhead_ms=20.0))
    outcome = closed_loop(scheduler, [(64, 128)] * 2048, concurrency=1024)
    assert outcome.duration_ns == 2 * 128 * 20 * MS + TURNAROUND_NS  # idle between the two waves


def test_open_loop_arrivals_wait_for_no_answer_and_idle_time_is_skipped() -> None:
    arrivals_ns = [0, MS // 2, 20 * MS]
    outcome = open_loop(engine(), arrivals_ns, [(10, 5), (10, 2), (10, 1)])
    # The second joins the step that begins at 1 ms, the third finds the engine idle.
    assert [(s.arrived_ns, s.first_ns, s.last_ns) for s in outcome.sequences] == [
        (MS // 2, 2 * MS, 3 * MS),
        (0, MS, 5 * MS),
        (20 * MS, 21 * MS, 21 * MS),
    ]
    assert outcome.duration_ns == 21 * MS


def test_the_mean_of_drawn_steps_is_that_of_the_chances() -> None:
    each = [draw_steps(b"%d" % i, 1000, CHANCES) for i in range(100)]
    gained = [b - a for steps in each for a, b in pairwise(steps.ends[:-1])]
    assert fmean(gained) == pytest.approx(LENGTH, rel=0.01)
    assert set(gained) == {1, 2, 3, 4}


@loop_over(("tokens", "chances", "steps"), [
    (1, CHANCES, DraftedSteps((1,))),
    (9, (), DraftedSteps()),
    (4, (0.0, 1.0), DraftedSteps((1, 2, 3, 4))),
    (6, (1.0, 1.0, 0.0), DraftedSteps((1, 4, 6), past=1)),
])  # fmt: skip
def test_an_answer_ends_at_its_length(tokens: int, chances: tuple[float, ...], steps: DraftedSteps) -> None:
    assert draw_steps(b"", tokens, chances) == steps
    assert draw_steps(b"again", tokens, chances) == draw_steps(b"again", tokens, chances)


def test_a_step_counts_its_drafts_as_vllm_does() -> None:
    limits = Limits(8, 100, 10_000, acceptance=(1.0, 1.0, 0.0))
    scheduler, metrics = Scheduler(limits, FittedTiming(compute_us=1000.0)), Metrics("m", accepted=[0, 0, 0])
    for output in (6, 4):
        steps = draw_steps(b"", output, limits.acceptance)
        scheduler.add(Sequence(10, output, 10 + output, 0, steps=steps))
    now_ns, took_ms, tokens = 0, [], []
    while (step := scheduler.begin(now_ns)) is not None:
        took_ms.append((step.end_ns - now_ns) / 1e6)
        now_ns = step.end_ns
        ended = scheduler.end(step, now_ns)
        tokens.append(ended.tokens)
        metrics.record(ended, now_ns)
    assert took_ms == [20.0, 8.0, 4.0]  # a prompt's tokens, then 1 + 3 of each sequence
    assert tokens == [2, 6, 2]
    assert (scheduler.kv_context, scheduler.cache.in_use) == (0, 0)
    text = metrics.text(scheduler).decode()
    counted = {"drafts": 3, "draft_tokens": 9, "accepted_tokens": 6}
    for name, count in counted.items():
        assert f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="m"}} {count:.1f}\n' in text
    for position, count in enumerate((3, 3, 0)):
        labels = f'{{engine="0",model_name="m",position="{position}"}}'
        assert f"vllm:spec_decode_num_accepted_tokens_per_pos_total{labels} {count:.1f}\n" in text
    assert "vllm:generation_tokens_total" in text
    assert metrics.histograms["inter_token_latency"].counts[0] == 3  # steps of a sequence, not tokens


@loop_over(("interval", "sizes"), [(1, [1, 3, 1, 2]), (4, [1, 4, 2])])
def test_a_message_carries_the_tokens_of_a_step(interval: int, sizes: list[int]) -> None:
    dialect = Dialect(CHOICES["/v1/completions"], "m", 0, interval, drafts=True)
    reply = reply_for(dialect, ResponseOptions(5))
    sent = [data for n in (1, 4, 5) if (data := reply.token(n))] + [reply.last(7, "length")]
    texts = [data.split(b'"text":"', 1)[1].split(b'"', 1)[0] for data in sent]
    assert [text.count(b" ") for text in texts] == sizes
