"""Gaps beyond P99 are divided as the engine that made them knows it, whole or in slabs: hardly ever wrong."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.loops import loop_over_named
from fakes.engine_model import MS, EngineModel, score
from loadgen.base.arrays import Int64
from loadgen.features.attribution import stalls
from loadgen.features.attribution.attribution import ROWS, PartRows, attribute, mark_preempted, read_counts
from loadgen.features.attribution.stalls import trace_timeline
from loadgen.records import record
from loadgen.records.record import PATH, REORDERING, Record, Records
from loadgen.server.server_counters import ServerSample, ServerWindow

CHEAP: dict[str, Any] = {"prefill_ns_per_token": 1000}  # only prompts that are long make a step longer
SLOW = {100: 200 * MS, 300: 150 * MS, 420: 90 * MS}
PREEMPTED = {100: 300 * MS, 300: 500 * MS}
LOST = {(request, 20): 200 * MS for request in range(10, 50)}
CHUNKED = {20: 16_000, 40: 9000}
LONG = dict.fromkeys((20, 30, 40), 2000)


MODELS = {
    "slow steps": (EngineModel(1, slow_steps=SLOW, **CHEAP), 0.95),
    "slow steps with the server's times": (EngineModel(1, slow_steps=SLOW, server_times=True, **CHEAP), 0.95),
    "long prompts": (EngineModel(1, long_prompts=LONG, prefill_ns_per_token=80_000, chunk=4096), 0.95),
    "chunked prompts": (EngineModel(1, long_prompts=CHUNKED), 0.95),
    "chunked prompts with the server's times": (
        EngineModel(1, long_prompts=CHUNKED, server_times=True),
        0.95,
    ),
    "preemptions": (EngineModel(1, preempted=PREEMPTED, **CHEAP), 0.95),
    "preemptions without samples": (EngineModel(1, preempted=PREEMPTED, sampled=False, **CHEAP), 0.0),
    "retransmissions": (EngineModel(1, lost=LOST, **CHEAP), 0.95),
    "delays of the path": (EngineModel(1, lost=LOST, cause=PATH, **CHEAP), 0.95),
    "reordering": (EngineModel(1, lost=LOST, cause=REORDERING, **CHEAP), 0.95),
    "retransmissions without segment times": (EngineModel(1, lost=LOST, segments=False, **CHEAP), 0.0),
    "one stream": (EngineModel(1, slots=1, slow_steps=SLOW, **CHEAP), 0.0),
    "three streams": (EngineModel(1, slots=3, slow_steps=SLOW, **CHEAP), 0.0),
    "two streams and long prompts": (EngineModel(1, slots=2, prompt=10, long_prompts=CHUNKED), 0.95),
    "several at once": (EngineModel(1, slow_steps=SLOW, lost=LOST, preempted={200: 400 * MS}, **CHEAP), 0.95),
    "slow steps and chunked prompts": (EngineModel(1, slow_steps=SLOW, long_prompts=CHUNKED), 0.95),
    "several messages a step": (EngineModel(1, slow_steps=SLOW, burst=3, **CHEAP), 0.95),
}


@pytest.mark.parametrize(("model", "right"), MODELS.values(), ids=MODELS)
def test_what_a_gap_waited_for_is_found(model: EngineModel, right: float) -> None:
    run, truth = model.run()
    found = attribute(run.facts, run.records)
    injected, hit, wrong = score(found.gaps, truth)
    assert not found.nothing_to_explain
    assert hit >= right * injected
    assert wrong <= 0.02 * injected
    if not right:
        assert hit <= 0.02 * injected


@pytest.mark.parametrize("slots", [1, 4, 8, 32])
@pytest.mark.parametrize("jitter", [0.01, 0.03, 0.06])
def test_a_run_that_goes_well_has_nothing_to_explain(slots: int, jitter: float) -> None:
    run, _ = EngineModel(5, slots=slots, requests=8 * slots, jitter=jitter, **CHEAP).run()
    found = attribute(run.facts, run.records)
    assert not found.gaps.is_long
    named = {key: of_part for key, of_part in found.gaps.sum_parts().items() if of_part}
    assert set(named) <= {"decode_step", "unknown", "others_prefill", "slow_step"}
    assert found.gaps.share("slow_step") + found.gaps.share("others_prefill") < 0.02


@pytest.mark.parametrize(("slots", "output", "seed"), [(16, 16, 1), (32, 16, 1), (64, 16, 3), (16, 30, 3)])
def test_cached_prompts_of_nearly_all_steps_are_not_blamed(slots: int, output: int, seed: int) -> None:
    requests, draw = 40 * slots, random.Random(seed)
    at = draw.sample(range(5, 40 * output), 40 * output // 50)
    slow = {step: int(draw.uniform(60, 300) * MS) for step in at}
    model = EngineModel(
        seed, slots=slots, requests=requests, output=output, prefill_ns_per_token=0, slow_steps=slow
    )
    run, truth = model.run()
    gaps = attribute(run.facts, run.records).gaps
    injected, _, wrong = score(gaps, truth)
    assert wrong <= 0.02 * injected
    assert gaps.share("others_prefill") < 0.02


@pytest.mark.parametrize(("output", "rtt_ms"), [(80, 0.1), (80, 30), (20, 0.1), (20, 30)])
def test_a_pause_of_what_all_streams_pass_is_not_the_engines(output: int, rtt_ms: float) -> None:
    run, _ = EngineModel(1, slots=16, requests=320, output=output, prefill_ns_per_token=0).run()
    arrival_ns, rtt_ns = run.records.arrival_ns, np.full(320, round(rtt_ms * MS))
    held_ns, draw = arrival_ns.copy(), random.Random(1)
    for from_ns in range(int(arrival_ns.min()) + 500 * MS, int(arrival_ns.max()), 1000 * MS):
        until_ns = from_ns + draw.randrange(80, 300) * MS
        held_ns[(held_ns >= from_ns) & (held_ns < until_ns)] = until_ns
    gaps = attribute(run.facts, replace(run.records, arrival_ns=held_ns, rtt_ns=rtt_ns)).gaps
    assert gaps.share("slow_step") + gaps.share("others_prefill") < 0.02
    assert gaps.share("unknown") > 0.5


@pytest.mark.parametrize(("requests", "prompt"), [(60, 16_000), (240, 9000)])
def test_a_long_prompt_of_unknown_length_is_no_slow_step(requests: int, prompt: int) -> None:
    draw = random.Random(1)
    slow = {
        step: int(draw.uniform(60, 300) * MS) for step in draw.sample(range(5, 10 * requests), requests // 6)
    }
    model = EngineModel(
        1, requests=requests, prompt=10, long_prompts={20: prompt}, chunk=1 << 20, slow_steps=slow
    )
    run, truth = model.run()
    unknown = np.full(requests, -1)
    records = replace(run.records, planned_input=unknown, input_tokens=unknown)
    injected, _, wrong = score(attribute(run.facts, records).gaps, truth)
    assert wrong <= 0.02 * injected


def draw_late(late_ms: int, seed: int) -> tuple[EngineModel, random.Random]:
    """An engine whose requests come at random times, and have short prompts and late first tokens."""
    draw = random.Random(1000 * seed + late_ms)
    step_ns, rate = draw.choice([8, 10, 20, 40]) * MS, draw.choice([3, 6, 12, 20])
    requests, apart = draw.choice([100, 200]), draw.random() < 0.5
    late_ns = {one: round(draw.choice([1, 1, draw.uniform(0, 2)]) * late_ms * MS) for one in range(requests)}
    model = EngineModel(
        seed, requests=requests, output=draw.choice([60, 120]), step_ns=step_ns, rate=rate, apart=apart,
        http=late_ns, prompt=32, prefill_ns_per_token=1000,
    )  # fmt: skip
    return model, draw


def list_steps(model: EngineModel, per_s: float, draw: random.Random) -> list[int]:
    """List as many steps a second at random, for longer than the run takes."""
    count = int(1e9 * model.requests / model.rate / model.step_ns) + 5 * model.output
    return [step for step in range(count) if draw.random() < per_s * model.step_ns / 1e9]


def draw_paused(late_ms: int, seed: int) -> EngineModel:
    """An engine that pauses as a whole at random, whoever is there: no prompt makes it."""
    model, draw = draw_late(late_ms, seed)
    pause_ns = max(draw.choice([60, 100, 150, 300]) * MS, 3 * model.step_ns)
    steps = list_steps(model, draw.choice([0.5, 1, 2]), draw)
    return dataclasses.replace(model, slow_steps=dict.fromkeys(steps, pause_ns))


def draw_prefilled(late_ms: int, seed: int) -> EngineModel:
    """An engine that some long prompts stall, a tenth of the time or less."""
    model, draw = draw_late(late_ms, seed)
    stall_ns = max(draw.choice([60, 100, 150, 300]) * MS, 3 * model.step_ns)
    share = min(draw.choice([0.05, 0.1, 0.3]), 0.1e9 / stall_ns / model.rate)
    long = {
        one: int(draw.uniform(1600, 2500))
        for one in range(model.requests)
        if draw.random() < max(share, 0.03)
    }
    return dataclasses.replace(
        model, apart=False, long_prompts=long, prefill_ns_per_token=stall_ns // 2000,
        chunk=draw.choice([512, 2048, 1 << 20]),
    )  # fmt: skip


def sum_scores(models: Iterable[EngineModel]) -> tuple[float, float]:
    """The shares of the injected time that are found in the right part, and in a wrong one."""
    sums = np.zeros(3, np.int64)
    for model in models:
        run, truth = model.run()
        sums += score(attribute(run.facts, run.records).gaps, truth)
    return sums[1] / sums[0], sums[2] / sums[0]


LATE_MS = (0, 1, 30, 100, 200)


@pytest.mark.parametrize("late_ms", LATE_MS)
def test_first_tokens_that_are_due_in_a_pause_did_not_make_it(late_ms: int) -> None:
    found, wrong = sum_scores(draw_paused(late_ms, seed) for seed in range(3))
    assert found >= 0.3
    assert wrong <= 0.05
    found, wrong = sum_scores(draw_prefilled(late_ms, seed) for seed in range(3))
    assert found >= 0.95
    assert wrong <= 0.05


@pytest.mark.long
@pytest.mark.parametrize("late_ms", LATE_MS)
@pytest.mark.parametrize(("draw", "least"), [(draw_paused, 0.6), (draw_prefilled, 0.95)])
def test_of_200_runs_most_is_found_and_5_percent_is_wrong(
    draw: Callable[[int, int], EngineModel], least: float, late_ms: int
) -> None:
    found, wrong = sum_scores(draw(late_ms, seed) for seed in range(200))
    assert found >= least
    assert wrong <= 0.05


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("late_ms", [30, 100, 200])
def test_a_prompt_of_32_tokens_makes_no_pause_of_150_ms(late_ms: int, seed: int) -> None:
    model = EngineModel(
        seed, requests=200, output=120, step_ns=10 * MS, rate=6, apart=True, prompt=32,
        http=dict.fromkeys(range(200), late_ms * MS),
    )  # fmt: skip
    steps = list_steps(model, 1, random.Random(seed))
    run, _ = dataclasses.replace(model, slow_steps=dict.fromkeys(steps, 150 * MS)).run()
    gaps = attribute(run.facts, run.records).gaps
    assert gaps.share("others_prefill") == 0
    assert gaps.share("slow_step") >= 0.85


def end_steps(lengths_ms: Iterable[float]) -> Int64:
    """When steps of these lengths end."""
    return np.array(10**12 + np.cumsum([*lengths_ms]) * MS, np.int64)


def make_record(index: int, sent_ns: int, arrival_ns: Int64, **keys: Any) -> Record:
    tokens = np.ones(len(arrival_ns), np.int64)
    return Record(
        index, 0, sent_ns, sent_ns, int(arrival_ns[-1]), arrival_ns=arrival_ns, tokens=tokens, **keys
    )


def attribute_steps(plans: Sequence[tuple[int, range]], ends_ns: Int64) -> PartRows:
    """The gaps of eight long answers and others: when each was sent, and of which steps it has a token."""
    every = [(10**12, range(len(ends_ns)))] * 8 + [*plans]
    records = [
        make_record(index, sent_ns, ends_ns[steps.start : steps.stop] + 1000 * index, input_tokens=64)
        for index, (sent_ns, steps) in enumerate(every)
    ]
    return attribute(EngineModel(1).run()[0].facts, Records.from_records(records)).gaps


def test_prompts_that_gather_during_a_stall_did_not_cause_it() -> None:
    slow = range(100, 1500, 150)
    ends_ns = end_steps(200 if step in slow else 13 if step - 1 in slow else 10 for step in range(1500))
    plans = [(int(ends_ns[step - 1]) - 5 * MS, range(step, step + 9)) for step in range(7, 1490, 7)]
    plans += [
        (int(ends_ns[step - 1]) + came_ms * MS, range(step + 1, step + 9))
        for step in slow
        for came_ms in (5, *range(20, 200, 20))  # one had come before the stall was a step long
    ]
    gaps = attribute_steps(plans, ends_ns)
    assert gaps.share("others_prefill") < 0.05
    assert gaps.share("slow_step") > 0.8


def test_a_slow_step_before_that_of_a_prompt_is_not_the_prompts() -> None:
    prompts = range(20, 1500, 20)
    ends_ns = end_steps(110 if step in prompts else 260 if step % 100 == 99 else 10 for step in range(1500))
    plans = [(int(ends_ns[step - 2]) - MS // 10, range(step, step + 9)) for step in prompts]
    gaps = attribute_steps(plans, ends_ns)
    slow = gaps.select(gaps.whole_ns > 200 * MS)
    assert len(slow) == 8 * 15
    assert slow.share("slow_step") > 0.85


def test_prompts_that_make_slow_what_nearly_was_are_not_sure() -> None:
    prompts = range(13, 3000, 9)
    ends_ns = end_steps((12.3 if at % 300 >= 285 else 10) + 0.5 * (at in prompts) for at in range(3000))
    plans = [(int(ends_ns[step - 2]) - MS // 10, range(step, step + 9)) for step in prompts if step < 2990]
    gaps = attribute_steps(plans, ends_ns)
    assert gaps.is_long
    assert gaps.share("others_prefill") < 0.02


def read_late(records: Records, begins_ns: Iterable[int], for_ns: int, most: int) -> Records:
    """What a client reads that stood still at these times: up to `most` messages at once, with the last one's
    timestamp.
    """
    rows = []
    for row in range(len(records)):
        true_ns = records.arrival_ns[records.start[row] : records.start[row + 1]]
        seen_ns, lags_ns, shared = true_ns.copy(), [0], 0
        for from_ns in begins_ns:
            at = np.flatnonzero((true_ns >= from_ns) & (true_ns < from_ns + for_ns))
            for read in np.split(at, range(most, len(at), most)):
                if len(read):
                    seen_ns[read] = true_ns[read[-1]]
                    lags_ns.append(from_ns + for_ns - int(true_ns[read[-1]]))
                    shared += len(read) - 1
        rows.append((seen_ns, sum(lags_ns), max(lags_ns), shared))
    seen, sums, largest, shared_reads = zip(*rows, strict=True)
    return replace(
        records, arrival_ns=np.concatenate(seen), lag_sum_ns=np.array(sums), lag_max_ns=np.array(largest),
        shared_reads=np.array(shared_reads), delay_us=np.zeros(0, np.int32), delay_cause=np.zeros(0, np.int8),
    )  # fmt: skip


@pytest.mark.parametrize("most", [3, 12, 100])
@pytest.mark.parametrize("burst", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_client_that_stood_still_makes_no_slow_step(seed: int, burst: int, most: int) -> None:
    draw = random.Random(seed)
    model = EngineModel(seed, requests=96, step_ns=10 * MS, burst=burst, prompt=32, prefill_ns_per_token=1000)
    run, _ = model.run()
    begin_ns, end_ns = int(run.records.arrival_ns.min()), int(run.records.arrival_ns.max())
    begins_ns = [draw.randrange(begin_ns, end_ns) for _ in range(6)]
    records = read_late(run.records, begins_ns, draw.choice([100, 300]) * MS, most)
    gaps = attribute(replace(run.facts, client=replace(run.facts.client, transport="wire")), records).gaps
    named = {key: round(gaps.share(key), 3) for key in ROWS if gaps.share(key) >= 0.02}
    assert set(named) <= {"decode_step", "read_lag", "unknown"}, named
    # What one read brought whole was read soon after its last message: nothing shows that it was late.
    assert gaps.share("read_lag") >= (0.2 if most == 3 else 0)


def test_one_late_read_explains_one_gap_of_a_request() -> None:
    run, _ = EngineModel(1, slots=3, slow_steps=dict.fromkeys(range(50, 1500, 50), 100 * MS)).run()
    many, late_ns = np.full(60, 200), np.full(60, 80 * MS)
    records = replace(
        run.records, reads=many, unstamped_reads=many, lag_max_ns=late_ns, lag_sum_ns=late_ns + MS
    )
    gaps = attribute(run.facts, records).gaps
    lag_ns = np.bincount(gaps.request, gaps.parts[ROWS["read_lag"]], minlength=60)
    assert np.bincount(gaps.request, minlength=60).max() > 1
    assert lag_ns.max() == 81 * MS


def draw_model(seed: int) -> EngineModel:
    """An engine, its load and what goes wrong in it, as the seed has them."""
    draw = random.Random(seed)
    slots, step_ns = draw.choice([4, 6, 8, 16, 32]), draw.choice([8, 20, 45]) * MS
    requests = slots * draw.choice([6, 10])
    steps = requests * 80 // slots
    wrong = draw.sample(["slow", "long", "preempted", "lost"], draw.choice([1, 2, 3]))
    keys: dict[str, Any] = {"prefill_ns_per_token": draw.choice([2000, 20_000, 60_000])}

    def draw_stalls(places: Iterable[Any], least: int, most: int) -> dict[Any, int]:
        return {place: int(draw.uniform(least, most) * step_ns) for place in places}

    if "slow" in wrong:
        count = draw.randrange(2, 7)
        keys["slow_steps"] = draw_stalls((draw.randrange(5, steps) for _ in range(count)), 3, 15)
    if "long" in wrong:
        keys["chunk"] = draw.choice([2048, 1 << 20])
        keys["prefill_ns_per_token"] = draw.choice([20_000, 60_000])
        some = draw.sample(range(slots, requests), min(5, requests // 4))
        keys["long_prompts"] = {request: draw.randrange(4000, 16_000) for request in some}
    if "preempted" in wrong:
        count = draw.randrange(1, 4)
        keys["preempted"] = draw_stalls((draw.randrange(5, steps) for _ in range(count)), 8, 40)
    if "lost" in wrong:
        some = draw.sample(range(requests), requests // 6)
        keys["lost"] = draw_stalls(((request, draw.randrange(1, 39)) for request in some), 5, 30)
    keys |= {"jitter": draw.choice([0.01, 0.03, 0.06]), "server_times": draw.random() < 0.3}
    return EngineModel(seed, slots=slots, requests=requests, step_ns=step_ns, **keys)


@pytest.mark.long
def test_of_200_runs_95_percent_is_right_and_2_percent_wrong() -> None:
    sums = np.zeros(3, np.int64)
    for seed in range(200):
        run, truth = draw_model(seed).run()
        gaps = attribute(run.facts, run.records).gaps
        assert np.array_equal(gaps.parts.sum(axis=0), gaps.whole_ns)
        sums += score(gaps, truth)
    injected, hit, wrong = sums.tolist()
    assert hit >= 0.95 * injected
    assert wrong <= 0.02 * injected


RUN = made_runs.run(requests=8)
FIRST_NS = int(RUN.records.sent_ns.min())
BEGAN_NS = FIRST_NS - 100 * MS  # when sampling began
# By seconds after that.
SAMPLES = tuple(ServerSample(at_s=at_s, preemptions=n) for at_s, n in ((0.5, 0), (1.5, 1), (2.5, 1)))
# When streams fell silent alone (ms after sampling began), which of these were preempted, and after the run.
# Without the time of sampling one may have been before the count rose, or after it.


@loop_over_named(
    ("silent_ms", "known", "unknown", "after"),
    {
        "one before the count rose": ([800], [True], [True], 1),
        "one after it": ([1700], [False], [False], 1),
        "one right after it": ([1530], [False], [True], 1),
        "two, while it rose by one": ([800, 900], [False, False], [False, False], 1),
        "one after the last sample": ([2700], [True], [True], 2),
        "one after it, not counted after the run": ([2700], [False], [False], None),
    },
)
def test_silences_are_marked_where_the_count_rose(
    silent_ms: list[int], known: list[bool], unknown: list[bool], after: int | None
) -> None:
    begin_ns = BEGAN_NS + np.array(silent_ms, np.int64) * MS
    for from_ns, marks in ((BEGAN_NS, known), (None, unknown), (BEGAN_NS - 10**15, unknown)):
        assert mark(begin_ns, preemptions=after, sampled_from_ns=from_ns) == marks, from_ns


def mark(begin_ns: Int64, **window: Any) -> list[bool]:
    """Which silences of 10 ms were preemptions, by what was counted."""
    counted = read_counts(ServerWindow(samples=SAMPLES, **window), RUN.records)
    marks: list[bool] = mark_preempted(counted, begin_ns, np.full(len(begin_ns), 10 * MS)).tolist()
    return marks


def test_sampling_may_begin_after_the_first_request() -> None:
    late_ns = FIRST_NS + 300 * MS
    begin_ns = late_ns + np.array([900, 1600]) * MS  # before the count rose, and after it
    assert mark(begin_ns, preemptions=1, sampled_from_ns=late_ns) == [True, False]


def test_without_samples_no_silence_is_a_preemption() -> None:
    for window in (None, ServerWindow(preemptions=3)):
        counted = read_counts(window, RUN.records)
        assert len(counted) == 0
        assert not mark_preempted(counted, np.array([FIRST_NS]), np.array([MS])).any()


MODEL = EngineModel(
    3, slow_steps={50: 200 * MS, 300: 90 * MS}, long_prompts={20: 9000}, lost={(30, 9): 50 * MS}, burst=2
)


@pytest.mark.parametrize("block", [1, 100, 1000])
def test_a_run_in_slabs_is_the_same_run(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = MODEL.run()
    whole, attributed = trace_timeline(run.records, 20 * MS), attribute(run.facts, run.records)
    for module in (record, stalls):
        monkeypatch.setattr(module, "BLOCK", block)
    assert not run.records.in_one_block
    parted, again = trace_timeline(run.records, 20 * MS), attribute(run.facts, run.records)
    for name in whole.__struct_fields__:
        assert np.array_equal(getattr(whole, name), getattr(parted, name)), name
    assert (again.threshold_ns, again.typical_ns) == (attributed.threshold_ns, attributed.typical_ns)
    for name in attributed.gaps.__struct_fields__:
        assert np.array_equal(getattr(attributed.gaps, name), getattr(again.gaps, name)), name


def make_streams(gaps_ns: np.ndarray, streams: int = 4) -> Records:
    """Streams that all have the same gaps between their messages, 1 µs apart."""
    at_ns = 10**12 + np.concatenate([[0], np.cumsum(gaps_ns)]).astype(np.int64)
    return Records.from_records(make_record(n, int(at_ns[0]), at_ns + 1000 * n) for n in range(streams))


@pytest.mark.parametrize(
    ("gaps_ms", "silences_ms"),
    [
        ([20] * 500, []),
        ([20] * 300 + [24] + [20] * 300, []),
        ([20] * 300 + [60] + [20] * 300, [60]),
        ([20] * 300 + [60] * 40 + [20] * 300, [60] * 40),
        ([20] * 900 + [40] * 900, []),  # a batch that grew makes longer steps, which are typical from then on
        ([20] * 900 + [40] * 900 + [110] + [40] * 99, [110]),
        ([20] * 3 + [100] + [20] * 3, [100]),
    ],
)
def test_silences_are_longer_than_what_is_typical_then(gaps_ms: list[int], silences_ms: list[int]) -> None:
    found = trace_timeline(make_streams(np.array(gaps_ms) * MS), 20 * MS)
    lengths_ms = np.rint((found.end_ns - found.begin_ns) / MS).tolist()
    assert [length for length in lengths_ms if length > 45] == [each for each in silences_ms if each > 45]
    if not silences_ms:
        assert len(lengths_ms) <= 130  # steps that change in the middle of a bin


def test_a_delay_that_is_known_makes_no_silence() -> None:
    records = make_streams(np.full(300, 20) * MS)
    late_us = np.where((records.arrival_ns - 10**12) // MS // 20 == 150, 90_000, 0).astype(np.int32)
    held = replace(
        records,
        arrival_ns=records.arrival_ns + late_us.astype(np.int64) * 1000,
        delay_us=late_us,
        delay_cause=(late_us > 0).astype(np.int8),
    )
    assert len(trace_timeline(held, 20 * MS).begin_ns) == 0
