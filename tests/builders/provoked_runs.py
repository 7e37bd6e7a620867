"""Runs in virtual time that go wrong, each with exactly the doubts that it raises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from builders import provocations as made
from builders import provoked_states as states
from builders.made_cases import START_NS as BEGAN_NS
from builders.made_cases import shards
from builders.provocations import Play, Prepare, Provocation, changed_facts, exposed, failing, metered
from builders.provoked_answers import OF_SLOTS
from builders.provoked_roles import ROUTED
from builders.provoked_tails import TAILED
from fakes.counting_api import CountingApi, count
from fakes.hosted_api import openai_error
from fakes.scripted_server import Answer, End, api, stream, token, usage
from fakes.virtual_network import VirtualServer
from fakes.virtual_servers import MS, engine_server, null_server
from loadgen.facts.run_facts import Facts, SensorSummary
from loadgen.host.machine_state import MachineState
from loadgen.server.checkpoint import Checkpoint
from loadgen.server.engine_config import EngineConfig
from loadgen_servers.null.messages import SHAPES

_TALKS = "--backend openai-chat --dataset-path talks.jsonl"
_WORDS = "one two three four five six seven eight nine ten " * 4
_MOST = 250  # tokens of a model's context
FOUR = "--random-input-len 64 --random-output-len 10 --num-prompts 80 --max-concurrency 4"
TEN = "--random-input-len 5 --random-output-len 10 --num-prompts 80 --max-concurrency 4"
FIVE = "--random-input-len 5 --random-output-len 5 --num-prompts 80 --max-concurrency 4"
# A rule notes failures as they are decoded: how many more are sent by then is a matter of chance.
ALONE = f"{FIVE} --num-prompts 400 --max-concurrency 1"
MANY = "--random-input-len 5 --random-output-len 5 --num-prompts 240 --max-concurrency 4"
SIX = "--random-input-len 64 --random-output-len 10 --num-prompts 72 --max-concurrency 6"
PICTURES = Path(__file__).parents[1] / "data" / "pictures"
MODEL = f"--model-config {Path(__file__).parents[1] / 'data' / 'configs' / 'qwen3-8b.json'}"


def talks(turns: Sequence[int], delay_s: float = 0.0, tokens: int = 5) -> Prepare:
    """A file of conversations with so many turns each."""
    rows = [_rows(name, planned, delay_s, tokens) for name, planned in enumerate(turns)]
    return made.rows_in("talks.jsonl", [row for each in rows for row in each])


def _rows(name: int, turns: int, delay_s: float, tokens: int) -> Iterator[dict[str, Any]]:
    for turn in range(turns):
        row = {"conversation_id": f"c{name}", "content": f"{name} {turn} {_WORDS}"}
        yield {**row, "turn": 2 * turn + 1, "role": "user", "max_tokens": tokens, "delay_seconds": delay_s}
        yield {**row, "turn": 2 * turn + 2, "role": "assistant"}


def short_of_context() -> VirtualServer:
    """A model that takes prompts of _MOST tokens."""

    def refusal(body: Mapping[str, Any]) -> dict[str, Any] | None:
        words = f"This model's maximum context length is {_MOST} tokens. Please reduce the length."
        return openai_error(words) if count(body) > _MOST else None

    return VirtualServer(CountingApi(refusal=refusal, gap_s=0.02))


def closing_each() -> VirtualServer:
    """Five tokens, and the connection is closed after each answer."""
    return VirtualServer(api(lambda _: Answer(stream(5, 0.02).pieces, End.CLOSE)))


def few_hits(facts: Facts) -> dict[str, Any]:
    """The server counts few of the cached tokens that it reports in usage."""
    window = facts.window
    if window is None or window.prefix_hits is None:
        return {}
    return {"window": window.model_copy(update={"prefix_hits": 100})}


_CACHING = partial(engine_server, "--enable-prompt-tokens-details")
OF_SESSIONS: dict[str, Provocation] = {
    "turns that fail in conversations": Provocation(
        failing(5), f"{_TALKS} --max-concurrency 2", {"sessions-ended-early", "many-failures"},
        prepare=talks([4] * 16),
    ),
    "conversations longer than the model's context": Provocation(
        short_of_context, f"{_TALKS} --max-concurrency 2", {"context-limit"},
        prepare=talks([6] * 16, tokens=3),
    ),
    "a server without a prefix cache": Provocation(
        partial(engine_server, "--enable-prompt-tokens-details", "--no-enable-prefix-caching"),
        f"{_TALKS} --max-concurrency 2",
        {"session-forgotten"},
        prepare=talks([4] * 16),
    ),
    "cached tokens that the server counts otherwise": Provocation(
        _CACHING, f"{_TALKS} --max-concurrency 2", {"cached-tokens-differ"}, prepare=talks([4] * 16),
        play=changed_facts(few_hits),
    ),
    "a server that closes between two turns": Provocation(
        closing_each, f"{_TALKS} --max-concurrency 2", {"reconnected", "many-resent"},
        prepare=talks([3] * 16, 0.4),
    ),
    "one conversation longer than all others": Provocation(
        _CACHING, f"{_TALKS} --max-concurrency 2", {"sessions-ran-dry"}, prepare=talks([*[2] * 20, 40]),
    ),
    "users who wait for their answers": Provocation(
        partial(null_server, ttft_ms=250), f"{_TALKS} --users 2 --user-rate 5", {"users-waited"},
        prepare=talks([4] * 16),
    ),
    "a client that hardly runs, between two turns": Provocation(
        null_server, f"{_TALKS} --max-concurrency 4", {"turns-late", "reads-late", "busy-loop"},
        prepare=talks([8] * 24, 0.1), play=made.pauses(47, every_ms=64),
    ),
}  # fmt: skip


def engine(*flags: str) -> made.Server:
    """The embedded engine, 20 ms a step unless a preset says otherwise."""
    return lambda: engine_server(*flags)


def null(**settings: Any) -> made.Server:
    """The null server, which has no /metrics."""
    return lambda: null_server(**settings)


def _accept_more(facts: Facts) -> dict[str, Any]:
    """The facts' counters with more drafts accepted."""
    assert facts.window is not None
    return {"window": facts.window.model_copy(update={"accepted_tokens": 3000})}


# The server, and what it answers.
_OF_SERVERS = {
    "a server that ignores images": Provocation(
        engine(), f"{FOUR} --image-size 8x8 --image-format png", {"images-ignored"}
    ),
    "one image in every request, ignored": Provocation(
        engine(), f"{FOUR} --image-dir {PICTURES}", {"images-ignored", "images-repeated"}
    ),
    "answers that end early": Provocation(
        engine("--early-eos", "1"), f"""{FOUR} --extra-body '{{"ignore_eos": false}}'""", {"answer-lengths"}
    ),
    "answers that may end early": Provocation(
        engine("--early-eos", "1"), f"{FOUR} --no-ignore-eos", {"early-ends"}
    ),
    "chunks of several tokens, and no usage": Provocation(made.uncounted, FOUR, {"tokens-not-counted"}),
    "another prompt than was planned": Provocation(engine(), FOUR, {"prompt-lengths"}, play=made.cut_prompts),
    "few prompts that there are": Provocation(
        engine(),
        "--random-input-len 1 --vocab-size 5 --random-output-len 5 --num-prompts 80 --max-concurrency 4",
        {"identical-prompts"},
    ),
    "low load after high load, by the server's counters": Provocation(
        engine(), f"{made.SAME_PROMPTS} {made.LOW}", {"prefix-cache"}, prepare=made.high_load_before
    ),
    "low load after high load, by usage": Provocation(
        engine("--enable-prompt-tokens-details"),
        f"{made.SAME_PROMPTS} {made.LOW} --no-observe",
        {"prefix-cache"},
        prepare=made.high_load_before,
    ),
    "a server that runs two of six": Provocation(engine("--max-num-seqs", "2"), SIX, {"server-limit"}),
    "a KV cache that is too small": Provocation(
        engine("--preempt", "--kv-cache-tokens", "270", "--no-enable-prefix-caching"),
        "--random-input-len 32 --random-output-len 30 --random-range-ratio 0.8 --num-prompts 80 "
        "--max-concurrency 8",
        {"preemptions", "queued"},
    ),
    "another client": Provocation(
        engine(), FOUR, {"foreign-requests", "latencies-differ"}, prepare=made.another_client
    ),
    "a cold server": Provocation(engine("--cold-ms", "50", "--cold-steps", "10"), FOUR, {"first-wave"}),
    "a server that tires": Provocation(
        engine("--slowdown-per-s", "1"), FOUR, {"tpot-trend", "throughput-trend"}
    ),
    "four messages a write": Provocation(
        null(interval_ms=80, shapes=[SHAPES["--messages-per-write"][0]("4")]),
        f"{FOUR} --random-output-len 16",
        {"arrivals-not-tokens"},
    ),
    "two messages a write, after the first": Provocation(
        made.answering(token(), *[token() * 2] * 4, token("z", "length") + usage(10)),
        TEN,
        {"messages-together"},
    ),
    "ten of twenty tokens, and no word to place them": Provocation(
        made.answering(*made.ten("a"), usage(20)), f"{TEN} --random-output-len 20", {"tokens-not-located"}
    ),
    "ten of twenty tokens, each a word": Provocation(
        made.answering(*made.ten(" a"), usage(20)), f"{TEN} --random-output-len 20", {"arrivals-not-tokens"}
    ),
    "reasoning that the total alone counts": Provocation(
        made.answering(*made.ten("a"), usage(10).replace(b"}}", b',"total_tokens":95}}')),
        TEN,
        {"hidden-tokens"},
    ),
    "no finish reasons": Provocation(
        made.answering(*made.ten("a", None), usage(10)), TEN, {"ends-not-reported"}
    ),
    "answers that end within their reasoning": Provocation(
        made.answering(*[each.replace(b'"text"', b'"reasoning"') for each in made.ten("a")], usage(10)),
        TEN,
        {"reasoning-alone"},
    ),
    "half of the requests fail": Provocation(failing(2), FIVE, {"many-failures"}),
    "failures until a rule ends the run": Provocation(
        failing(2), f"{ALONE} --max-failures 30", {"stopped-by-rule", "many-failures"}, code=1
    ),
    "a dead server": Provocation(failing(1), ALONE, {"stopped-by-rule", "many-failures"}, code=1),
    "one of twenty requests fails": Provocation(failing(20), FIVE, {"failures"}),
    "a server that closes one of ten idle connections": Provocation(made.closing(10), FIVE, {"many-resent"}),
    "a server that closes one of a hundred and ten": Provocation(made.closing(110), MANY, {"resent"}),
    "a model that its memory cannot deliver": Provocation(
        engine(), f"{FOUR} {MODEL} --bandwidth 400", {"beyond-roofline"}
    ),
    "a model that its memory could deliver four times as fast": Provocation(
        engine(), f"{FOUR} {MODEL} --bandwidth 3000", {"slow-kernel"}
    ),
    "a server that restarts": Provocation(
        metered(lambda answers, _: exposed(answers, 5 * answers if answers else 1000)),
        FIVE,
        {"counters-reset"},
    ),
    "counters of another server": Provocation(
        metered(lambda answers, _: exposed(answers, 10 * answers)), FIVE, {"tokens-far-off"}
    ),
    "counters that are a little off": Provocation(
        metered(lambda answers, _: exposed(answers, 5 * answers + 4 * (answers > 0))), FIVE, {"tokens-differ"}
    ),
    "another model behind the port, and never idle": Provocation(
        metered(lambda answers, scrapes: exposed(answers, 5 * answers) + exposed(0, scrapes, "other")),
        FIVE,
        {"several-models", "unsettled"},
    ),
    "the server goes on with what was cancelled": Provocation(
        metered(lambda answers, _: exposed(answers, 5 * answers)),
        f"{FIVE} --cancel-rate 50% --cancel-after 50ms",
        {"no-abort"},
    ),
    "every request is cancelled": Provocation(
        engine(), f"{FOUR} --cancel-rate 100% --cancel-after 1tok", {"all-cancelled"}, code=1
    ),
    "the speed of prefill in a queue": Provocation(
        engine("--max-num-seqs", "2"),
        f"{SIX} --percentile-metrics ttft,prefill_speed",
        {"server-limit", "prefill-while-queued"},
    ),
}

# The load, and its data.
_ROWS = [
    {"timestamp": 3000 * (i // 4), "input_length": 600, "output_length": 4, "hash_ids": [2 * i, 2 * i + 1]}
    for i in range(96)
]
_FEW_LONG = [
    *_ROWS[:4],
    *(row | {"input_length": 48, "hash_ids": [2 * i]} for i, row in enumerate(_ROWS[4:], 4)),
]
_CUT = "--speed-up 60 --trace-max-input-len 64 --trace-too-long clip"
_OF_LOADS = {
    "a rate that one at a time cannot have": Provocation(
        null(ttft_ms=50),
        "--random-input-len 8 --random-output-len 2 --num-prompts 12 --max-concurrency 1 --request-rate 100",
        {"sends-late", "rate-not-reached"},
    ),
    "a rate above the server's": Provocation(
        engine("--max-num-seqs", "8"),
        "--random-input-len 8 --random-output-len 4 --num-prompts 180 --request-rate 200 --burstiness inf",
        {"overload", "queued"},
    ),
    "time for more than there is": Provocation(null(), f"{FIVE} --duration 60", {"ran-out"}),
    "percentiles of few samples": Provocation(
        null(), f"{FIVE} --metric-percentiles 99.9", {"thin-percentiles"},
    ),
    "two requests a slot": Provocation(
        null(), f"{FIVE} --num-prompts 8 --metric-percentiles 50", {"few-per-slot"},
    ),
    "a last request that is long": Provocation(
        null(), f"{FIVE} --num-prompts 20 --random-range-ratio 0.9", {"ramp-and-drain"},
    ),
    "a trace whose clock goes in steps, its prompts cut": Provocation(
        engine(), f"--trace trace.jsonl {_CUT}", {"trace-grid", "lengths-cut"},
        prepare=made.rows_in("trace.jsonl", _ROWS),
    ),
    "a trace whose clock goes in steps, of which four prompts are cut": Provocation(
        engine(), f"--trace trace.jsonl {_CUT}", {"trace-grid", "few-lengths-cut"},
        prepare=made.rows_in("trace.jsonl", _FEW_LONG),
    ),
    "a prefix of a block and a half": Provocation(
        engine(), f"{FOUR} --random-prefix-len 24", {"reuse-not-as-expected"},
    ),
    "drafts of random tokens": Provocation(
        engine(),
        FOUR,
        {"random-acceptance"},
        play=changed_facts(lambda facts: {"as_run": EngineConfig(speculative="ngram, 3 tokens")}),
    ),
    "drafts whose steps a stream interval hides": Provocation(
        engine("--acceptance", "0.9,0.5", "--stream-interval", "4"),
        f"{FOUR} --prompt-format words",
        {"steps-hidden", "latencies-differ"},
    ),
    "drafts that another client shares": Provocation(
        engine("--acceptance", "0.9,0.5"), f"{FOUR} --prompt-format words", {"drafts-differ"},
        play=changed_facts(_accept_more),
    ),
    "an engine that fell back to a slower kernel": Provocation(
        engine(),
        FOUR,
        {"fallback-kernel"},
        play=changed_facts(
            lambda facts: {"as_run": EngineConfig(quantization="fp8", kernel="MarlinFP8ScaledMM")},
        ),
    ),
    "experts that get random tokens": Provocation(
        engine(),
        FOUR,
        {"random-routing"},
        play=changed_facts(lambda facts: {"checkpoint": Checkpoint(path="/m", config_digest="0", experts=8)}),
    ),
    "shards that began apart, by clocks that are hardly known": Provocation(
        null(),
        FIVE,
        {"shards-started-apart", "clock-offset"},
        play=changed_facts(
            lambda facts: {
                "shards": shards(
                    {"began_ns": BEGAN_NS},
                    {"began_ns": BEGAN_NS + 900 * MS},
                    {"began_ns": BEGAN_NS, "error_ns": 25 * MS, "reference": "wall clock"},
                ),
            },
        ),
    ),
}  # fmt: skip


def in_state(state: MachineState, sensed: SensorSummary | None = None) -> Play:
    """The machine of the server is in this state, and its sensors show this."""
    return changed_facts(lambda facts: {"state_before": state, "sensed": sensed})


# The client and its machine.
_OF_CLIENTS = {
    "a client without kernel timestamps": Provocation(null(), f"{FIVE} --transport httpx", {"unstamped"}),
    "a client without kernel timestamps, and busy": Provocation(
        null(), f"{FIVE} --transport httpx", {"unstamped", "client-busy"}, play=made.busy_core
    ),
    "a client with kernel timestamps, and busy": Provocation(
        null(), FIVE, {"busy-loop"}, play=made.busy_core
    ),
    "a client that hardly runs": Provocation(
        null(),
        f"{FOUR} --random-output-len 60",
        {"reads-late", "busy-loop"},
        play=made.pauses(47, every_ms=64),
    ),
    "a client that stalls now and then": Provocation(
        null(), f"{FOUR} --random-output-len 60", {"reads-late"}, play=made.pauses(107, every_ms=1043)
    ),
    "prompts that take longer to build than to answer": Provocation(
        null(ttft_ms=1, interval_ms=1),
        f"{FOUR} --random-output-len 1",
        {"late-bodies", "concurrency-not-held"},
        play=made.slow_prompts,
    ),
    "a clock that steps": Provocation(null(), FOUR, {"clock-stepped"}, play=made.clock_step(5)),
    "a clock that is set back by an hour": Provocation(
        null(), FOUR, {"clock-unusable"}, play=made.clock_step(-3.6e6)
    ),
    "a processor that throttles": Provocation(null(), FOUR, {"throttled"}, play=made.heat_throttling),
    "a GPU that stays at low clocks": Provocation(
        null(), FIVE, {"gpu-clock-low"}, play=in_state(states.SPARK, states.sensed(611))
    ),
    "a GPU that is too hot": Provocation(
        null(),
        FIVE,
        {"gpu-throttled"},
        play=in_state(states.SERVER, states.sensed(1980, held={"GPU 0 of node-a: power brake": 1.0})),
    ),
    "a GPU with a power cap": Provocation(null(), FIVE, {"power-cap"}, play=in_state(states.CAPPED)),
    "a Jetson below MAXN without jetson_clocks": Provocation(
        null(), FIVE, {"board-clock", "clocks-not-pinned", "gpu-memory-unknown"}, play=in_state(states.ORIN)
    ),
    "a page cache that fills the GPU's memory": Provocation(
        null(), FIVE, {"page-cache"}, play=in_state(states.FULL, states.sensed(2400))
    ),
    "one timestamp of many that lies in the past": Provocation(
        lambda: made.BackdatingServer(api(lambda _: stream(5, 0.02))), FIVE, {"impossible-timestamps"}
    ),
    "a ring without room for all segments": Provocation(
        lambda: VirtualServer(api(lambda _: stream(5, 0.02)), room=6),
        f"{FIVE} --transport ring",
        {"ring-incomplete"},
        play=made.pauses(45, every_ms=1003),
    ),
    "a server that waits for late acknowledgements": Provocation(
        lambda: made.NagleServer(api(lambda _: stream(5, 0.002))),
        f"{FIVE} --transport ring",
        {"acks-late"},
        play=made.pauses(7, every_ms=11),
    ),
    "a load near the client's capacity": Provocation(
        null(), FOUR, {"headroom"}, play=made.self_test(capacity_per_s=250)
    ),
    "a load beyond the client's capacity": Provocation(
        null(), FOUR, {"beyond-capacity"}, play=made.self_test(capacity_per_s=50)
    ),
    "a client that was suspended": Provocation(
        null(),
        FOUR,
        {"client-stopped", "reads-late", "busy-loop", "concurrency-not-held"},
        play=made.one_suspension,
    ),
    "a client without kernel timestamps that was suspended": Provocation(
        null(), f"{FOUR} --transport httpx", {"stopped-unstamped", "unstamped"}, play=made.one_suspension
    ),
    "a network that loses segments": Provocation(null(), FIVE, {"network-lossy"}, play=made.lost_segments(4)),
    "a network that lost one": Provocation(null(), MANY, {"network-losses"}, play=made.lost_segments(120)),
    "a disk that took no journal": Provocation(
        null(),
        FIVE,
        {"journal"},
        play=changed_facts(lambda facts: {"journal_error": "No space left on device"}),
    ),
}

PROVOCATIONS = {**_OF_SERVERS, **_OF_LOADS, **_OF_CLIENTS, **OF_SLOTS, **OF_SESSIONS, **ROUTED, **TAILED}
