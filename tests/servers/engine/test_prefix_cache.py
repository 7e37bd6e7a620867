"""The engine's prefix cache, alone and under the scheduler, in virtual time."""

from __future__ import annotations

import random

import pytest

from builders.loops import loop_over
from builders.required import require
from loadgen_servers.engine import prefix_cache
from loadgen_servers.engine.prefix_cache import PrefixCache, block_hashes
from loadgen_servers.engine.scheduler import Limits, Scheduler, Sequence, Step, StepOutput
from loadgen_servers.engine.step_times import FittedTiming

MS = 1_000_000


def test_a_block_is_its_items_and_all_before_them() -> None:
    a, b = block_hashes(tuple(range(32)), 16), block_hashes((*range(16), *range(16)), 16)
    assert a[0] == b[0]
    assert len({*a, *b}) == 3
    assert block_hashes(b"x" * 63, 64) == ()
    assert len(block_hashes(b"x" * 130, 64)) == 2


def use(cache: PrefixCache, *blocks: int, tokens: int = 0) -> tuple[list[int], int]:
    """A sequence that computes all of its prompt's blocks and is still running."""
    tokens = tokens or cache.block_size * len(blocks)
    held = require(cache.admit(blocks, tokens, tokens))
    return held + cache.computed(blocks[len(held) :]), tokens


def found(cache: PrefixCache, *blocks: int) -> int:
    """How many of these a prompt one token longer would find; leaves their order of use as it would."""
    tokens = cache.block_size * len(blocks) + 1
    held = require(cache.admit(blocks, tokens, 0))
    cache.release(held, 0)
    return len(held)


def test_a_block_is_found_while_it_is_held_and_after() -> None:
    cache = PrefixCache(1000, 10)
    running = use(cache, 1, 2)
    assert (found(cache, 1, 2, 3), cache.in_use) == (2, 20)
    cache.release(*running)
    assert (found(cache, 1, 2, 3), cache.in_use) == (2, 0)


def test_the_last_token_is_always_computed_and_with_it_its_block() -> None:
    cache = PrefixCache(1000, 10)
    cache.release(*use(cache, 1, 2))
    assert cache.admit((1, 2), 20, 20) == [1]
    assert cache.admit((1, 2), 21, 21) == [1, 2]


def test_a_block_behind_one_that_is_gone_is_not_found() -> None:
    cache = PrefixCache(1000, 10)
    cache.release(*use(cache, 2))
    assert found(cache, 1, 2) == 0


def test_shared_blocks_take_room_once() -> None:
    cache = PrefixCache(50, 10)
    first = use(cache, 1, 2, tokens=30)
    held = cache.admit((1, 2, 3), 40, 40)
    assert (held, cache.in_use) == ([1, 2], 50)
    assert cache.admit((1,), 11, 11) is None
    cache.release(*first)
    assert cache.in_use == 40
    cache.release([1, 2], 40)
    assert cache.in_use == 0


def test_what_two_compute_at_once_is_kept_once() -> None:
    cache = PrefixCache(100, 10)
    one, other = cache.admit((1,), 10, 10), cache.admit((1,), 10, 10)
    assert (one, other) == ([], [])
    assert (cache.computed((1,)), cache.computed((1,))) == ([1], [])
    cache.release([], 10)
    cache.release([1], 10)
    assert (cache.in_use, found(cache, 1)) == (0, 1)


def test_least_recently_used_go_first_and_ends_before_beginnings() -> None:
    cache = PrefixCache(60, 10)
    cache.release(*use(cache, 1, 2))
    cache.release(*use(cache, 3, 4))
    cache.release(*use(cache, 5, 6))
    assert found(cache, 1) == 1  # used just now, unlike 2
    use(cache, 7, tokens=20)
    assert [found(cache, 1, 2), found(cache, 3, 4), found(cache, 5, 6)] == [1, 1, 2]
    cache.grow(20)
    assert [found(cache, 1), found(cache, 3), found(cache, 5, 6), found(cache, 7)] == [0, 0, 2, 1]


def test_a_hit_is_kept_whatever_else_must_go() -> None:
    cache = PrefixCache(30, 10)
    cache.release(*use(cache, 1))
    cache.release(*use(cache, 2))
    held = cache.admit((1,), 30, 30)
    assert (held, found(cache, 2)) == ([1], 0)


def test_the_process_keeps_a_bounded_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "MOST_IDLE_BLOCKS", 2)
    cache = PrefixCache(1 << 40, 10)
    cache.release(*use(cache, 1, 2, 3))
    assert [found(cache, 1, 2), found(cache, 1, 2, 3)] == [2, 2]


def test_a_reset_forgets_all_unless_sequences_run_as_in_vllm() -> None:
    cache = PrefixCache(100, 10)
    running = use(cache, 1)
    assert (cache.reset(), found(cache, 1)) == (False, 1)
    cache.release(*running)
    assert (cache.reset(), found(cache, 1)) == (True, 0)


def engine(kv: int = 1000, batched: int = 100, preempt: bool = False) -> Scheduler:
    limits = Limits(8, batched, kv, block_size=10, preempt=preempt)
    return Scheduler(limits, FittedTiming(overhead_ms=1.0, compute_us=100.0, pair_ns=10.0))


def sequence(prompt: int, output: int, blocks: tuple[int, ...] = (), name: str = "") -> Sequence:
    return Sequence(prompt, output, prompt + output, arrived_ns=0, blocks=blocks, owner=name)


def steps(scheduler: Scheduler) -> list[tuple[Step, StepOutput]]:
    """Run to the end, each step begun where the last one ended."""
    done: list[tuple[Step, StepOutput]] = []
    while (step := scheduler.begin(done[-1][0].end_ns if done else 0)) is not None:
        done.append((step, scheduler.end(step, step.end_ns)))
    return done


def test_a_cached_beginning_is_not_prefilled_but_attended_to() -> None:
    scheduler = engine()
    times = []
    for _ in range(2):
        scheduler.add(sequence(100, 2, tuple(range(1, 11))))
        ran = [step for step, _ in steps(scheduler)]
        times.append([step.end_ns - step.start_ns for step in ran])
        works = [step.work for step in ran]
    assert [(w.prefill_tokens, w.attended_pairs, w.kv_tokens) for w in works] == [
        (10, 10 * 90 + 55, 0),
        (0, 0, 101),
    ]
    assert times == [[MS + 10 * MS + 50_500, MS + 100_000], [MS + MS + 9_550, MS + 100_000]]
    assert (scheduler.cache.queried, scheduler.cache.found) == (200, 90)


def test_blocks_are_shared_once_their_step_is_over() -> None:
    scheduler = engine(batched=30)
    blocks = (1, 2, 3, 4)
    scheduler.add(sequence(40, 9, blocks, "a"))
    scheduler.add(sequence(45, 9, blocks, "b"))
    prefilled = [[(s.owner, n) for s, n in step.chunks] for step, _ in steps(scheduler)]
    # When b is admitted the first three blocks are computed, the fourth is under way.
    assert prefilled[:2] == [[("a", 30)], [("a", 10), ("b", 15)]]


def test_a_prompt_aborted_in_its_prefill_leaves_only_what_was_computed() -> None:
    scheduler = engine(batched=25)
    gone = sequence(50, 5, (1, 2, 3, 4, 5))
    scheduler.add(gone)
    step = require(scheduler.begin(0))
    scheduler.end(step, step.end_ns)
    step = require(scheduler.begin(step.end_ns))
    scheduler.abort(gone)
    scheduler.end(step, step.end_ns)
    scheduler.add(sequence(51, 1, (1, 2, 3, 4, 5)))
    assert [step.work.prefill_tokens for step, _ in steps(scheduler)] == [25, 6]


def test_without_preemption_a_request_waits_for_all_it_may_need() -> None:
    scheduler = engine(kv=100)
    for name in "ab":
        scheduler.add(sequence(40, 30, name=name))
    ran = steps(scheduler)
    assert [step.work.decodes for step, _ in ran] == [0, *[1] * 29] * 2
    assert scheduler.preemptions == 0


def test_with_preemption_the_last_one_waits_and_is_computed_again() -> None:
    scheduler = engine(kv=100, preempt=True)
    for name in "ab":
        scheduler.add(sequence(40, 30, name=name))
    ran = steps(scheduler)
    # After eleven tokens each their KV is full, and b gives its 51 back; a, alone now, ends nineteen
    # steps later, and b's prompt and tokens are prefilled for its twelfth.
    assert [step.work.decodes for step, _ in ran] == [0, *[2] * 10, *[1] * 19, 0, *[1] * 18]
    again, ended = ran[30]
    assert (again.work.prefill_tokens, again.work.kv_tokens) == (51, 0)
    assert ended.pauses_ns == [again.end_ns - ran[10][0].end_ns]
    assert ([s.owner for s in ended.first], ended.started) == (["b"], [])
    assert scheduler.preemptions == 1
    assert scheduler.cache.queried == 80  # the second look-up is not counted


def test_a_preempted_request_is_not_admitted_in_the_same_step() -> None:
    scheduler = engine(kv=100, preempt=True)
    # Computed in one step, the same prompt is in the KV twice; whoever comes back finds the other's copy,
    # and there would be room for it at once.
    for name in "ab":
        scheduler.add(sequence(45, 30, (1, 2, 3, 4), name))
    ran = steps(scheduler)
    preempted_in = next(i for i, (step, _) in enumerate(ran) if i and step.work.decodes == 1)
    assert (ran[preempted_in][0].chunks, len(ran[preempted_in + 1][0].chunks)) == ([], 1)


def test_a_preempted_request_finds_its_prompt_unless_evicted() -> None:
    scheduler = engine(kv=100, preempt=True)
    scheduler.add(sequence(40, 13, name="a"))
    scheduler.add(sequence(40, 30, (1, 2, 3, 4), name="b"))
    ran = steps(scheduler)
    # a grows to 53 tokens meanwhile, so of the 51 that b gave back all four blocks could stay.
    assert [step.work.prefill_tokens for step, _ in ran if step.chunks] == [80, 11]
    assert scheduler.cache.found == 0
    scheduler = engine(kv=100, preempt=True)
    scheduler.add(sequence(40, 30, name="a"))
    scheduler.add(sequence(40, 30, (1, 2, 3, 4), name="b"))
    # a grew to 70: room for three.
    assert [step.work.prefill_tokens for step, _ in steps(scheduler) if step.chunks] == [80, 21]


@loop_over("preempt", [False, True])
@loop_over("seed", range(10))
def test_every_request_gets_its_tokens_and_the_cache_its_room_back(seed: int, preempt: bool) -> None:
    draw = random.Random(seed)
    scheduler = engine(kv=300, batched=64, preempt=preempt)
    requests = []
    for _ in range(60):
        prompt, family = draw.randrange(1, 150), draw.randrange(4)
        blocks = tuple(100 * family + i for i in range(prompt // 10))
        requests.append(sequence(prompt, draw.randrange(1, 120), blocks))
    got = dict.fromkeys(requests, 0)
    queue = list(requests)
    aborted = requests[5::10]
    now_ns = 0
    while queue or scheduler.waiting or scheduler.running:
        for request in queue[: draw.randrange(4)]:
            queue.remove(request)
            scheduler.add(request)
        for request in aborted:
            if request not in queue and got[request] >= request.output_tokens // 2 and not request.last_ns:
                scheduler.abort(request)
                request.last_ns = -1
        step = scheduler.begin(now_ns)
        if step is None:
            continue
        assert scheduler.cache.in_use <= 300
        assert scheduler.cache.in_use + 10 * len(scheduler.cache._idle) <= 300
        now_ns = step.end_ns
        ended = scheduler.end(step, now_ns)
        for request in (*ended.decoded, *ended.first, *ended.finished):
            got[request] += 1
            assert got[request] == (
                request.output_tokens if request in ended.finished else request.produced(ended.number)
            )
    assert all(got[request] == request.output_tokens for request in requests if request not in aborted)
    assert (scheduler.cache.in_use, scheduler.kv_context, scheduler.cache._holders) == (0, 0, {})
    assert scheduler.cache.found > 0
    assert (scheduler.preemptions > 0) == preempt
