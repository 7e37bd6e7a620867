"""Drawn drafts: what each step accepts, what leaves in its message, and what is counted of it."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from builders.loops import loop_over
from loadgen_servers.engine.drafts import DraftedSteps, draw_steps
from loadgen_servers.engine.messages import CHOICES, Dialect, ResponseOptions
from loadgen_servers.engine.metrics import Metrics
from loadgen_servers.engine.reply import reply_for
from loadgen_servers.engine.scheduler import Limits, Scheduler, Sequence
from loadgen_servers.engine.step_times import FittedTiming

CHANCES = (0.8, 0.7, 0.5)
LENGTH = 1 + 0.8 + 0.8 * 0.7 + 0.8 * 0.7 * 0.5


def test_the_mean_of_drawn_steps_is_that_of_the_chances() -> None:
    each = [draw_steps(b"%d" % i, 1000, CHANCES) for i in range(100)]
    gained = [b - a for steps in each for a, b in pairwise(steps.ends[:-1])]
    assert fmean(gained) == pytest.approx(LENGTH, rel=0.01)
    assert set(gained) == {1, 2, 3, 4}


@loop_over(
    ("tokens", "chances", "steps"),
    [
        (1, CHANCES, DraftedSteps((1,))),
        (9, (), DraftedSteps()),
        (4, (0.0, 1.0), DraftedSteps((1, 2, 3, 4))),
        (6, (1.0, 1.0, 0.0), DraftedSteps((1, 4, 6), past=1)),
    ],
)
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
