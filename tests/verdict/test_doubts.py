"""Each doubt is provoked by one synthetic run, its siblings have their words, and a clean run has none."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over, loop_over_named, read_tables
from builders.made_cases import (
    INPUT,
    MS,
    OUTPUT,
    REQUESTS,
    START_NS,
    TARGETS,
    TPOT_MS,
    TTFT_MS,
    Rows,
    answered,
    bound,
    changed,
    client,
    closed,
    contradicted,
    drifting,
    failed,
    firsts_shared,
    in_turn,
    measured,
    observed,
    open_loop,
    rate,
    run,
    sampled,
    set_back,
    shared,
    some_met,
    uncounted,
)
from builders.provoked_answers import OF_ANSWERS, OF_CANCELLED, OF_DRAFTS
from builders.provoked_data import OF_DATA
from builders.provoked_roles import OF_ROLES
from builders.provoked_sessions import AT_EASE_IN_SESSIONS, OF_SESSIONS
from builders.provoked_shards import AT_EASE, OF_SHARDS
from builders.provoked_states import OF_STATES, SOUND_STATES
from builders.provoked_tails import OF_TAILS
from loadgen.base.arrays import Int64
from loadgen.base.rule import Rule
from loadgen.features.ring import ring_checks
from loadgen.features.roofline import bound as roofline_bound
from loadgen.features.selftest import kept_selftests
from loadgen.features.sessions import session_checks
from loadgen.features.shards import shard_checks
from loadgen.features.targets import target_checks
from loadgen.host.cpu_use import CpuUse
from loadgen.records.record import UNKNOWN, Record
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.server.engine_config import EngineConfig
from loadgen.server.server_counters import RoleWindow, ServerLatency, ServerWindow
from loadgen.transport.failure import Failure, FailureKind
from loadgen.verdict import verdict
from loadgen.verdict.evidence import RunEvidence
from loadgen.verdict.verdict import DOUBTS

TABLES = read_tables("doubts")

BY_DOUBT = {doubt.code: doubt for doubt in DOUBTS}
STARVED = "; client and server share 2 CPUs by session (sched_autogroup)"


def at_once() -> Rows:
    """Every answer came whole, when its last token did."""
    rows = changed(closed(), shared_reads=OUTPUT - 1)
    for row in rows:
        row.arrival_ns = np.full(OUTPUT, row.arrival_ns[-1])
    return rows


# The run, and the words that its evidence must have.
PROVOKED: dict[str, tuple[RunEvidence, str]] = {
    "counters-reset": (run(window=ServerWindow(names="vllm", reset=True)), "backwards"),
    "cut-short": (run(cut_short="the capturing process died"), "died: 320 of 320"),
    "many-failures": (run(failed(5)), "64 of 320 requests failed (20 %): 64 × timeout"),
    "tokens-far-off": (run(window=observed(generation_tokens=100)), "client 3520, server 100"),
    "interrupted": (
        run(failed(5, FailureKind.CANCELLED), cut_short="stopped by Ctrl-C", interrupted=True),
        "stopped by Ctrl-C: 256 of 320",
    ),
    "stopped-by-rule": (
        run(failed(100, FailureKind.CANCELLED), stop_rule="--max-duration 60 s: 4 requests were cut"),
        "--max-duration 60 s: 4 requests were cut: 316 of 320",
    ),
    "failures": (run(failed(20)), "16 of 320 requests failed (5 %): 16 × timeout"),
    "many-resent": (
        run(changed(closed(), 20, resends=1)),
        "16 of 320 requests (5 %) were retried: the server had closed the idle connection",
    ),
    "prefix-cache": (run(window=observed(prefix_hits=27840)), "87 % of 32000 prompt tokens"),
    "identical-prompts": (run(repeated_prompts=200), "200 of 320 prompts equal an earlier"),
    "beyond-roofline": (
        run(ceiling=bound(400)),
        "10 ms per token (mean TPOT): reading 15.1 GB of weights in that time takes 1514 GB/s, 3.8 × the 400",
    ),
    "tokens-not-counted": (
        run(changed(closed(), usage=False, exact_tokens=False, finish_reason="stop"), window=None),
        "320 of 320 responses have no usage: their chunks were counted",
    ),
    "answer-lengths": (
        run(changed(closed(), 2, output_tokens=6, finish_reason="stop"), window=None),
        "8.5 tokens per response, 11.0 requested (77.3 %), 160 of 320 shorter; finish reasons: length 160, "
        "stop 160",
    ),
    "prompt-lengths": (
        run(changed(closed(), input_tokens=INPUT + 20), window=None),
        "120.0 prompt tokens by usage, 100.0 planned",
    ),
    "concurrency-not-held": (run(closed(turn_ms=50.0)), "mean concurrency 6.04 between"),
    "sends-late": (
        run(open_loop(late_ms=4.0), rate(100)),
        "sent 4.00 ms late on average, 4.00 ms at most, scheduled 10 ms apart: the client was late",
    ),
    "rate-not-reached": (run(open_loop(stretch=1.2), rate(100, 16)), "83.3 requests/s sent, 100 planned"),
    "server-limit": (run(window=sampled(*[(4, 4)] * 6)), "at most 4 of 8 requests at once; in 6 of 6"),
    "foreign-requests": (
        run(window=observed(requests={"length": 400}, running_before=3)),
        "3 requests were on the server before the run; the server finished 400 requests, 320 of them "
        "from this run",
    ),
    "first-wave": (
        run(in_turn(cold_ms=1000.0)),
        "median TTFT was 1089 ms in the first wave of 8, 59.8 ms later",
    ),
    "tpot-trend": (run(closed(tpot_ms=drifting)), "TPOT rose by 24"),
    "throughput-trend": (
        run(closed(ttft_ms=lambda i: TTFT_MS * (1 + i / REQUESTS))),
        "output throughput fell by 2",
    ),
    "preemptions": (run(window=observed(preemptions=40)), "40 preemptions in 320 requests"),
    "targets-unequal": (
        run(closed(slower_ms=lambda slot: 30.0 * (slot % 2)), targets=TARGETS),
        "median TTFT of http://b:8000 is 80 ms, of the others 50 ms, and higher in each of 10",
    ),
    "tokens-differ": (
        run(window=observed(generation_tokens=3600)),
        "generated tokens: client 3520, server 3600",
    ),
    "clock-unusable": (
        run(client=client(clock_step_ms=-5000.0)),
        "the wall clock stepped by -5 s during the run",
    ),
    "stopped-unstamped": (
        run(changed(closed(), unstamped_reads=OUTPUT + 2), client=client(transport="httpx", stopped_s=10.0)),
        "the client process did not run for 10.0 s: latencies of the requests in flight are too long",
    ),
    "client-stopped": (
        run(client=client(stopped_s=10.0)),
        "the client process did not run for 10.0 s: the kernel timed what arrived, but nothing was sent",
    ),
    "arrivals-not-tokens": (
        run(at_once()),
        "in 320 of 320 responses all chunks came at one instant, so they were not streamed",
    ),
    "hidden-tokens": (
        run(changed(closed(), hidden_tokens=30)),
        "usage's total has 9600 tokens in 320 responses beyond prompt and output",
    ),
    "tokens-not-located": (
        run(changed(uncounted(closed(), 5), usage=True, output_tokens=11), window=None, ceiling=None),
        "in 320 of 320 responses usage counts 3520 tokens in 1600 chunks, and nothing shows",
    ),
    "ends-not-reported": (
        run(changed(closed(), finish_reason="")),
        "320 of 320 responses end without a finish reason",
    ),
    "reasoning-alone": (
        run(changed(closed(), visible_ns=-1, text_ns=START_NS)),
        "320 of 320 responses ended within their reasoning",
    ),
    "reads-late": (run(shared(9.0)), "18.2 % of chunks coalesced into a read"),
    "client-busy": (
        run(changed(closed(), unstamped_reads=OUTPUT + 2), client=client(cpu_s=9.0)),
        "0.90 of a core busy",
    ),
    "beyond-capacity": (
        run(calibration=measured(300)),
        "self-test kept the P99 gap error under 5 % up to 300",
    ),
    "impossible-timestamps": (
        contradicted(7),
        "7 of 4160 reads (0.168 %) had an impossible kernel timestamp and use the client's own",
    ),
    "clock-stepped": (run(client=client(clock_step_ms=12.5)), "stepped by 12.5 ms"),
    "other-processes": (
        run(cpu_use=CpuUse(duration_s=20, cpus=2, server=0.9, client=0.2, others=0.8, waiting=0.9)),
        "other processes took 0.80 of 2 CPUs (0.20 by the client, 0.90 by the server), and a process waited "
        "for one 90 % of the time",
    ),
    "network-lossy": (
        run(changed(changed(closed(), 10, out_of_order=3), 160, retransmitted=1)),
        "lost or overtaken on the way in 32 of 320 responses (96 came after a later one, 2 of requests",
    ),
    "throttled": (run(throttled=("the CPU throttled for heat 5 times",)), "for heat 5 times"),
    "slow-kernel": (
        run(closed(lambda i: 400.0, lambda i: 40.0), ceiling=bound(1500)),
        "40 ms per token (median ITL) is 25.3 % of the roofline: 10.1 ms for 15.2 GB at 1500 GB/s",
    ),
    "resent": (run(changed(closed(), 200, resends=1)), "2 of 320 requests (0.625 %) were retried"),
    "journal": (
        run(journal_error="No space left on device, 40 requests late"),
        "the journal could not be written in full: No space left on device",
    ),
    "early-ends": (
        run(changed(uncounted(closed(), 5), usage=True), {"ignore_eos": False}, window=None),
        "5.0 tokens per response, 11.0 requested",
    ),
    "overload": (
        run(changed(open_loop(), end_ns=START_NS + 10**11), rate(100)),
        "160 requests in flight halfway through sending, 320 when the last was sent",
    ),
    "queued": (run(window=sampled(*[(2, 6), (3, 5), (8, 0)] * 3)), "waited in 6 of 9 samples"),
    "latencies-differ": (
        run(window=observed(ttft=ServerLatency(count=320, mean_ms=5.0, brackets_ms={}))),
        "TTFT mean (ms): client 50, server 5",
    ),
    "several-models": (run(window=observed(models=("a", "b"))), "2 models worked on this port: a, b"),
    "unsettled": (run(window=observed(settled=False)), "still changed"),
    "network-losses": (
        run(changed(closed(), 160, out_of_order=1)),
        "lost or overtaken on the way in 2 of 320 responses (2 came after a later one)",
    ),
    "messages-together": (run(shared(0.1)), "18.2 % of chunks coalesced into a read"),
    "unstamped": (run(changed(closed(), unstamped_reads=9)), "2880 of 4160 reads"),
    "busy-loop": (run(client=client(cpu_s=9.0)), "0.90 of a core busy"),
    "ring-incomplete": (
        run(client=client(transport="ring", segments=90, dropped_segments=10, fallen_back=3)),
        "requests are timed by reads: the packet ring lost 10 of 100 segments",
    ),
    "acks-late": (
        run(client=client(transport="ring", segments=100, held_segments=2)),
        "2 % of the segments waited for the client to acknowledge the one before",
    ),
    "late-bodies": (run(client=client(late_bodies=9)), "9 request bodies were not built"),
    "headroom": (run(calibration=measured(800)), "self-test kept the P99 gap error under 5 % up to 800"),
    "thin-percentiles": (
        run(closed(requests=9), {"num_prompts": 9}, requests=9, window=None),
        "P99 of TTFT, TPOT from 9 samples: a point estimate needs 100",
    ),
    "ran-out": (run(None, {"duration": 100.0}), "prompts were sent and the load fell"),
    "ramp-and-drain": (
        run(closed(tpot_ms=lambda i: 500.0 if i == REQUESTS - 1 else TPOT_MS)),
        "of the duration is ramp or drain, below the requested concurrency 8",
    ),
    "few-per-slot": (
        run(closed(requests=16), {"num_prompts": 16}, requests=16, window=None),
        "2 requests per slot",
    ),
    "fallback-kernel": (
        run(as_run=EngineConfig(quantization="mxfp4", kernel="MarlinMxfp4LinearKernel")),
        "mxfp4 linear layers by MarlinMxfp4LinearKernel",
    ),
    **OF_CANCELLED,
    **OF_ANSWERS,
    **OF_DATA,
    **OF_DRAFTS,
    **OF_ROLES,
    **OF_SESSIONS,
    **OF_SHARDS,
    **OF_STATES,
    **OF_TAILS,
}


# The doubts that go with one; with any other goes none.
COMPANY = {
    "rate-not-reached": {"sends-late"},
    "tpot-trend": {"throughput-trend"},
    "stopped-unstamped": {"unstamped"},
    "client-busy": {"unstamped"},
    "thin-percentiles": {"ramp-and-drain", "few-per-slot"},
    "random-acceptance": {"steps-hidden"},
    "load-lost": {"rest-of-the-load"},
    "rest-of-the-load": {"load-lost"},
    "board-clock": {"clocks-not-pinned"},
}


def names(case: RunEvidence) -> set[str]:
    return {found.rule.code for found in verdict.judge(case).findings}


def test_every_doubt_is_provoked() -> None:
    assert set(PROVOKED) == {doubt.code for doubt in DOUBTS}
    assert len(BY_DOUBT) == len(DOUBTS)


@loop_over(
    "module", [ring_checks, roofline_bound, kept_selftests, session_checks, shard_checks, target_checks]
)
def test_no_doubt_holds_of_a_run_without_its_feature(module: ModuleType) -> None:
    own = [rule for rule in vars(module).values() if isinstance(rule, Rule)]
    assert own
    for case, _ in PROVOKED.values():
        assert [rule.find(case) for rule in own] == [BY_DOUBT[rule.code].find(case) for rule in own]


def test_a_clean_run_raises_no_doubt_and_every_one_was_looked_for() -> None:
    case = run()
    assert {doubt.code: said for doubt in DOUBTS if (said := doubt.find(case)) is not None} == {}
    assert verdict.judge(case).unchecked == ()


@loop_over("name", PROVOKED)
def test_a_doubt_is_found_with_its_figures_where_it_holds(name: str) -> None:
    case, words = PROVOKED[name]
    assert words in (BY_DOUBT[name].find(case) or "")
    assert names(case) == {name} | COMPANY.get(name, set())


def paused(unstamped: int, stopped_s: float, every: int) -> RunEvidence:
    """A client that did not run for so long at once; one request of `every` waited as long for its token."""
    rows = changed(shared(9.0), unstamped_reads=unstamped)
    for row in rows[::every]:
        row.arrival_ns = row.arrival_ns + int(1000 * stopped_s * MS)
        row.end_ns = int(row.arrival_ns[-1])
    return run(rows, client=client(stopped_s=stopped_s))


@loop_over(
    ("case", "doubt", "words"),
    [
        (
            paused(OUTPUT + 2, 0.3, 20),
            "client-busy",
            "user-space timestamps and P99 TTFT is 350 ms; the client did",
        ),
        (paused(OUTPUT + 2, 0.3, 20), "client-busy", "did not run for 0.3 s at once: latencies include"),
        (paused(OUTPUT + 2, 0.3, 320), "client-busy", ""),  # one of all: not in P99
        (paused(OUTPUT + 2, 0.05, 20), "client-busy", ""),
        (paused(OUTPUT + 2, 1.5, 20), "client-busy", ""),  # stopped-unstamped says it
        (paused(1, 0.3, 20), "client-busy", ""),
        (paused(1, 0.3, 20), "reads-late", "9 ms max; the client did not run for 0.3 s at once"),
    ],
)
def test_a_pause_of_the_client_that_may_be_in_a_tail_is_named(
    case: RunEvidence, doubt: str, words: str
) -> None:
    found = BY_DOUBT[doubt].find(case)
    assert words in str(found) if words else found is None


@loop_over(("every", "blamed"), [(320, False), (3, False), (1, True)])
def test_answers_of_one_write_are_not_those_of_a_late_client(every: int, blamed: bool) -> None:
    rows = at_once()
    for row in rows[::every]:
        row.lag_sum_ns = row.lag_max_ns = 90 * MS * OUTPUT
        row.shared_lag_ns = 90 * MS * OUTPUT
    case = run(rows)
    assert (BY_DOUBT["arrivals-not-tokens"].find(case) is None) == blamed
    assert (BY_DOUBT["reads-late"].find(case) is not None) == blamed


def test_late_first_tokens_are_doubted_however_few_messages_there_are() -> None:
    case = run(firsts_shared(9.0))
    assert BY_DOUBT["reads-late"].find(case) == (
        "0.909 % of chunks coalesced into a read, read lag 9 ms mean of these, 0.75 ms of all, 9 ms max"
        f"{STARVED}: mean TTFT is about 0.99 ms too long"
    )
    assert names(case) == {"reads-late"}


@loop_over_named(("every", "changes", "doubts"), TABLES["no_usage"])
def test_messages_without_usage_are_no_tokens_unless_that_shows(
    every: int, changes: dict[str, Any], doubts: list[str]
) -> None:
    changes = {"usage": False, "exact_tokens": False, **changes}
    assert names(run(changed(closed(), every, **changes), window=None)) == {*doubts}


@pytest.mark.parametrize(
    ("late_ms", "worst_ms", "doubts"),
    [(9.0, 9.0, {"reads-late"}), (0.5, 11.0, {"reads-late"}), (0.5, 9.0, set())],
    ids=["late", "once away for more than a gap", "not late"],
)
def test_a_p99_of_gaps_that_a_few_shared_reads_made_longer_is_told_of(
    late_ms: float, worst_ms: float, doubts: set[str]
) -> None:
    case = run(some_met(late_ms, worst_ms))
    assert names(case) == doubts
    evidence = BY_DOUBT["reads-late"].find(case) or ""
    assert evidence.endswith(
        f"{worst_ms:g} ms max{STARVED}: P99 ITL is about 46.9 % too long" if doubts else ""
    )


# What a healthy server, or one that does as it is asked, may show.
HARMLESS = {
    "a prefix shared on purpose": run(workload={"prefix_len": 100}, window=observed(prefix_hits=16000)),
    "the blocks of a chat template": run(window=observed(prefix_hits=1000)),
    "one more beginning token": run(changed(closed(), input_tokens=INPUT + 1), window=None),
    "text that tokenizes a little differently": run(
        changed(closed(), input_tokens=INPUT + 30), prompt_format="text-vllm", window=None
    ),
    "a burst at the start, worked off in turn": run(in_turn()),
    "a drift that is too small to matter": run(closed(tpot_ms=lambda i: TPOT_MS * (1 + 0.05 * i / REQUESTS))),
    "noise without a drift": run(closed(tpot_ms=lambda i: TPOT_MS * (1 + 0.3 * ((i * 7919) % 100) / 100))),
    "one request of a thousand failed": run(failed(10**6)),
    "a queue for a moment": run(window=sampled((2, 6), (8, 0), (8, 0), (8, 0), (8, 0), (8, 0))),
    "as many tokens as the client's, requests not counted": run(window=observed(requests={})),
    "an open loop at its rate": run(open_loop(), rate(100)),
    "first tokens sent together with the next": run(firsts_shared(0.1)),
    **AT_EASE,
    **AT_EASE_IN_SESSIONS,
    **SOUND_STATES,
    "Marlin, which is the fast kernel of AWQ": run(
        as_run=EngineConfig(quantization="awq_marlin", kernel="MarlinLinearKernel")
    ),
    "no server to ask": run(window=None),
    "/metrics that is none": run(window=ServerWindow(error="/metrics is HTML")),
}


@loop_over("name", HARMLESS)
def test_what_a_healthy_run_may_show_is_no_doubt(name: str) -> None:
    assert names(HARMLESS[name]) == set()


# Runs of which little or nothing can be said: no doubt may fall over them.
def unsent(count: int) -> Rows:
    failure = Failure(FailureKind.CONNECT, "refused")
    empty: Int64 = np.zeros(0, np.int64)
    return [
        Record(i, 0, 0, 0, 0, planned_input=INPUT, arrival_ns=empty, tokens=empty, failure=failure)
        for i in range(count)
    ]


@loop_over_named(
    ("case", "found"),
    {
        "none": (run([], window=None), {"concurrency-not-held", "ramp-and-drain", "few-per-slot"}),
        "unsent": (
            run(unsent(9), window=None),
            {"many-failures", "concurrency-not-held", "ramp-and-drain", "few-per-slot"},
        ),
        "not streamed": (run(workload={"stream": False}), set()),
        "all at once": (run(workload={"max_concurrency": None}), set()),
        "a client unheard": (run(client=client(wall_s=0.0, cpu_s=0.0), cut_short="died"), {"cut-short"}),
    },
)
def test_a_run_that_says_little_is_judged_all_the_same(case: RunEvidence, found: set[str]) -> None:
    assert names(case) == found


@loop_over("doubt", DOUBTS)
def test_a_doubt_says_when_it_holds_and_what_to_do(doubt: Rule[RunEvidence]) -> None:
    assert doubt.condition
    assert doubt.remedy
    assert "|" not in doubt.condition + doubt.remedy
    assert "usage.prompt_tokens" not in doubt.condition  # of two APIs alone


BUSY: dict[str, Any] = {
    "duration_s": 20.0,
    "cpus": 2,
    "server": 0.9,
    "client": 0.2,
    "others": 0.8,
    "waiting": 0.9,
}


@loop_over_named(("changes", "found"), TABLES["other_processes"])
def test_others_are_doubted_only_where_they_take_cpus_that_are_needed(
    changes: dict[str, Any], found: bool
) -> None:
    case = run(cpu_use=CpuUse(**{**BUSY, **changes}))
    assert ("other-processes" in names(case)) is found


def test_a_client_that_waited_for_a_cpu_is_not_said_to_be_suspended() -> None:
    stopped: dict[str, Any] = {"client": client(stopped_s=2.0), "environment": {"sched_autogroup": "1"}}
    texts = {
        "busy": evidence(run(cpu_use=CpuUse(**BUSY), **stopped), "client-stopped"),
        "idle": evidence(run(cpu_use=CpuUse(**{**BUSY, "others": 0.0}), **stopped), "client-stopped"),
    }
    assert texts["busy"].startswith(
        "the client process did not run for 2.0 s (1.90 of 2 CPUs were busy, shared by session "
        "(sched_autogroup)): "
    )
    assert texts["idle"].startswith("the client process did not run for 2.0 s: ")


def evidence(case: RunEvidence, code: str) -> str:
    return next(found.evidence for found in verdict.judge(case).findings if found.rule.code == code)


@pytest.mark.parametrize("cut", [FailureKind.CANCELLED, FailureKind.LOST])
def test_the_failures_of_a_doubt_sum_to_its_number_without_those_cut_off(cut: FailureKind) -> None:
    rows = changed(failed(5), 4, failure=Failure(cut, "stopped while under way"))
    (found,) = (each for each in verdict.judge(run(rows)).findings if each.rule.code == "many-failures")
    assert found.evidence == "48 of 320 requests failed (15 %): 48 × timeout"


@loop_over_named(
    ("case", "found", "said"),
    {
        "without usage, by messages": (
            run(uncounted(closed(), 2), {"output_len": OUTPUT}, window=None),
            "tokens-not-counted",
            "320 of 320 responses have no usage: their chunks were counted, so TPOT and tok/s are of "
            "chunks, not of tokens",
        ),
        "messages are no length": (
            run(uncounted(closed(), 2), {"output_len": OUTPUT}, window=None),
            "answer-lengths",
            "",
        ),
        "without usage, in one piece": (
            run(uncounted(closed(), 2), {"stream": False}, window=None),
            "tokens-not-counted",
            "320 of 320 responses have no usage: their tokens are not known and count 0",
        ),
        "without usage, as asked": (run(uncounted(closed(), OUTPUT), window=None), "tokens-not-counted", ""),
        "one prompt for all": (
            run(None, {"extra_body": {"prompt": [7, 7, 7]}}),
            "identical-prompts",
            "--extra-body replaces the prompt: all 320 are the same, so a prefix cache serves them",
        ),
        "no prompt of this API": (run(None, {"extra_body": {"text": "x"}}), "identical-prompts", ""),
        "a prompt of SGLang's": (
            run(None, {"extra_body": {"text": "x"}, "backend": "sglang"}),
            "identical-prompts",
            "--extra-body replaces the prompt: all 320 are the same, so a prefix cache serves them",
        ),
        "many timestamps that cannot be": (
            contradicted(42),
            "clock-unusable",
            "42 of 4160 reads (1.01 %) had an impossible kernel timestamp and use the client's own "
            "(or segments came out of order: not known of this run)",
        ),
        "many in a run whose kernel counted segments out of order": (
            run(changed(closed(), 320, out_of_order=0, impossible_stamps=42)),
            "clock-unusable",
            "42 of 4160 reads (1.01 %) had an impossible kernel timestamp and use the client's own",
        ),
        "tokens before they were asked for": (
            run(set_back(64, 60.0)),
            "clock-unusable",
            "in 5 of 320 responses a token precedes its request or the token before it",
        ),
        "one such answer": (
            run(set_back(320, 60.0)),
            "impossible-timestamps",
            "in 1 of 320 responses a token precedes its request or the token before it",
        ),
        "early, but after the request": (run(set_back(1, 40.0)), "clock-unusable", ""),
        "a step that makes the clock unusable": (
            run(client=client(clock_step_ms=1500.0)),
            "clock-stepped",
            "",
        ),
        "a pause of 0.9 s": (run(client=client(stopped_s=0.9)), "client-stopped", ""),
        "a rule's own end": (run(failed(5), stop_rule="--max-failures 60: 64 failed"), "cut-short", ""),
        "a run that was killed": (
            run(recovered="read from the journal of a run that was killed"),
            "cut-short",
            "read from the journal of a run that was killed: 320 of 320 requests succeeded",
        ),
        "one that was killed by who gave it up": (
            run(recovered="read from the journal", interrupted=True),
            "interrupted",
            "read from the journal: 320 of 320 requests succeeded",
        ),
        "a first wave after a warm-up": (
            run(in_turn(cold_ms=1000.0), warmups=8),
            "first-wave",
            "median TTFT was 1089 ms in the first wave of 8, 59.8 ms later: 11.0 × the later P90, after "
            "allowing for the burst; 8 warm-up requests came before",
        ),
        "resends of a run that did not count them": (run(changed(closed(), 1, resends=-1)), "resent", ""),
    },
)
def test_a_sibling_of_a_doubt_is_told_in_its_own_words(case: RunEvidence, found: str, said: str) -> None:
    assert (BY_DOUBT[found].find(case) or "") == said
    assert (found in names(case)) == bool(said)


def test_tokens_out_of_order_are_found_within_an_answer_only() -> None:
    rows = closed()
    rows[3].arrival_ns[5] -= 30 * MS
    found = BY_DOUBT["impossible-timestamps"].find(run(rows))
    assert found is not None
    assert found.startswith("in 1 of 320 responses")
    assert BY_DOUBT["impossible-timestamps"].find(run(closed()[::-1])) is None


@loop_over_named(
    "case",
    {
        "the highest load tried held": run(calibration=measured(300, capacity_bounded=False)),
        "of the other transport": run(calibration=measured(1, transport="httpx")),
        "of one worker, over four": run(calibration=measured(300), client=client(workers=4)),
        "of four workers": run(calibration=measured(1300, workers=4), client=client(workers=4)),
    },
)
def test_a_self_test_that_leaves_room_is_no_doubt(case: RunEvidence) -> None:
    assert names(case) == set()


def test_what_workers_hold_together_is_named_with_what_one_held() -> None:
    (found,) = verdict.judge(run(calibration=measured(150), client=client(workers=2))).findings
    assert found.rule.code == "beyond-capacity"
    assert found.evidence.endswith("up to 300 (2 times what one worker held)")


# Of a load that changes, or of which a part is cancelled.


BURSTS: dict[str, Any] = {"bursts": "20 every 2s", "max_concurrency": None}


def in_bursts(requests: int, longer_ms: float = 0.0) -> Rows:
    """Bursts of 20 every 2 s; each request of a burst takes so much longer than one of the burst before."""
    rows = [answered(i, i, START_NS + i // 20 * 2000 * MS, 5.0, 1.0) for i in range(requests)]
    return [replace(row, end_ns=row.end_ns + int(row.index // 20 * longer_ms * MS)) for row in rows]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        pytest.param(in_bursts(110), False, id="half a burst at the end"),
        pytest.param(in_bursts(320), False, id="whole bursts"),
        pytest.param(in_bursts(320, 1500.0), True, id="bursts that are not over when the next one comes"),
        pytest.param(in_bursts(30, 9000.0), False, id="a single period"),
    ],
)
def test_bursts_are_judged_over_a_period_and_not_at_one_instant(rows: Rows, found: bool) -> None:
    case = run(rows, BURSTS, requests=len(rows), window=None)
    assert (BY_DOUBT["overload"].find(case) is not None) == found


@pytest.mark.parametrize(
    ("aborted", "running", "foreign"),
    [
        (0, 40, set()),  # 8 in flight, and the 32 that were cancelled may all go on
        (0, 41, {"foreign-requests"}),
        (30, 10, set()),
        (30, 11, {"foreign-requests"}),
    ],
)
def test_cancelled_requests_that_go_on_are_no_other_clients(
    aborted: int, running: float, foreign: set[str]
) -> None:
    window = sampled(*[(running, 0.0)] * 6)
    counted = {"length": 320 - aborted} | ({"abort": aborted} if aborted else {})
    case = run(failed(10, FailureKind.USER_CANCELLED), window=window.model_copy(update={"requests": counted}))
    assert names(case) - {"no-abort"} == foreign


@loop_over(("targets", "roles"), [(("http://a", "http://b"), 0), ((), 2)])
def test_samples_of_several_servers_are_of_no_one_instant(targets: tuple[str, ...], roles: int) -> None:
    window = sampled(*[(9, 0.0)] * 6)
    of = RoleWindow(role="worker", name="a", url="http://a", window=window)
    several = run(window=window, targets=targets, role_windows=(of,) * roles)
    found = BY_DOUBT["foreign-requests"].find
    assert found(run(window=window)) is not None
    assert found(several) is None


@pytest.mark.parametrize(
    ("workload", "late"),
    [(rate(100), False), ({"schedule": "rate 100 for 4s", "max_concurrency": None}, True)],
)
def test_a_late_tail_is_judged_where_the_rate_changes(workload: dict[str, Any], late: bool) -> None:
    rows = [replace(row, sent_ns=row.sent_ns + 12 * MS * (row.index % 50 == 0)) for row in open_loop()]
    assert ("sends-late" in names(run(rows, workload, window=None))) is late
    assert "a schedule" in BY_DOUBT["sends-late"].condition


# Of requests whose lengths only the server knows.


BODIES: dict[str, Any] = {"planned_input": UNKNOWN, "planned_output": UNKNOWN}


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_no_length_is_held_against_a_plan_that_has_none(ignore_eos: bool) -> None:
    other: dict[str, Any] = {"input_tokens": 4 * INPUT, "output_tokens": 5, "finish_reason": "stop"}
    lengths = {"answer-lengths", "early-ends", "prompt-lengths"}
    workload = {"ignore_eos": ignore_eos}
    planned = names(run(changed(closed(), **other), workload, window=None))
    unplanned = names(run(changed(closed(), **BODIES, **other), workload, window=None))
    assert len(planned & lengths) == 2
    assert not unplanned & lengths


@pytest.mark.parametrize(("input_tokens", "shown"), [(UNKNOWN, False), (INPUT, True)])
@pytest.mark.parametrize("layout", ["vllm-0.32", "sglang"])
def test_unknown_prompt_tokens_are_no_zero_in_the_block(input_tokens: int, shown: bool, layout: str) -> None:
    case = run(changed(closed(), 4, **BODIES, input_tokens=input_tokens), window=observed())
    text = report.render_report(Result(case.facts, case.records), layout=layout)
    assert ("Total input tokens:" in text, "Total token throughput" in text) == (shown, shown)
    rows = {line.split(":")[0] for line in text.splitlines() if line.endswith(" ")}  # of the block
    assert any(row.startswith(("Total input", "Input token", "Total token")) for row in rows) == shown
    assert "Output token throughput" in text
