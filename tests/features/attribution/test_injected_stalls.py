"""Stalls on purpose: each one's time is found in the right part, and scored by what is missing."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from benchmarks.bars.attributing import CASES, run_case
from benchmarks.harness.impaired_path import SERVER, Carrier, ImpairedPath, Impairment, Segment, read_stalls
from benchmarks.harness.process import CouldNotRun
from benchmarks.harness.scores import Score, Wait, merge_scores, score_row, score_run
from benchmarks.harness.stalled_run import Ends, Load, StalledRun, Truth, read_truth, run_stalled
from builders.loops import loop_over, loop_over_named, read_tables
from builders.provocations import suspensions
from fakes.rings import needs_ring
from fakes.virtual_network import LATENCY_NS, VirtualServer
from fakes.virtual_run import BASE_URL, run_on
from fakes.virtual_servers import engine_server
from loadgen import cli
from loadgen.features.attribution.attribution import IMPAIRED, ROWS, attribute_run
from loadgen.features.attribution.explain_command import explain_run
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen_servers.engine.stalling import RequestRow

MS = 1_000_000
LOAD = Load(requests=60, tokens=60, long=[40])
SLOW: Mapping[str, Any] = {"kind": "slow_step", "ms": 80, "at_s": [1, 3, 5]}
PREFILL: Mapping[str, Any] = {"kind": "prefill", "ms": 320, "steps": 4, "requests": [40]}
PREEMPTION: Mapping[str, Any] = {"kind": "preemption", "ms": [80, 200], "per_s": 1}
QUEUE: Mapping[str, Any] = {"kind": "queue", "ms": [80, 200], "share": 0.1}
HTTP: Mapping[str, Any] = {"kind": "http", "ms": [80, 200], "share": 0.1}


def play(
    place: Path,
    injections: Sequence[Mapping[str, Any]],
    load: Load = LOAD,
    client: Callable[[pytest.MonkeyPatch, VirtualServer], None] | None = None,
) -> StalledRun:
    """A run in virtual time against an engine with these injections, and of a client that runs so."""
    asked, log = place / "inject.json", place / "truth.jsonl"
    asked.write_text(json.dumps({"seed": 1, "injections": list(injections)}))
    flags = ("--inject", str(asked), "--log", str(log), "--enable-per-request-metrics")
    server = engine_server("--preset-json", load.preset, *flags)
    with pytest.MonkeyPatch.context() as patch:
        run_on(server, patch)
        if client is not None:
            client(patch, server)
        words = ["--quiet", "--base-url", BASE_URL, "--run-dir", str(place / "runs")]
        assert cli.main(["bench", *words, *load.write_prompts(place / "prompts.jsonl", seed=1)]) == 0
    (directory,) = (place / "runs").iterdir()
    result = run_directory.load(directory)
    # What the kernel says of a connection: a virtual one is of no kernel.
    rtt_ns = np.full(len(result.records), 2 * LATENCY_NS)
    return StalledRun(
        replace(result, records=structs.replace(result.records, rtt_ns=rtt_ns)), read_truth(log, load)
    )


ALONE = {
    "a slow step": ([SLOW], ["slow_step"]),
    "a long prefill": ([PREFILL], ["others_prefill", "prefill"]),
    "preemptions": ([PREEMPTION], ["preemption"]),
    "waits in the queue": ([QUEUE], ["queue"]),
    "waits before it": ([HTTP], ["http"]),
    "all at once": (
        [
            {**SLOW, "at_s": [1]},
            {**PREFILL, "ms": 170, "steps": 2},
            {**PREEMPTION, "per_s": 0.5},
            {**QUEUE, "share": 0.05},
            {**HTTP, "share": 0.05},
        ],
        ["slow_step", "others_prefill", "preemption", "queue", "http", "prefill"],
    ),
}


@pytest.mark.parametrize(("injections", "parts"), ALONE.values(), ids=ALONE)
def test_what_was_injected_is_found(
    injections: Sequence[Mapping[str, Any]], parts: Sequence[str], tmp_path: Path
) -> None:
    run = play(tmp_path, injections)
    scores = score_run(run, run.result.derive(attribute_run))
    assert set(parts) <= set(scores), f"only {set(scores)} in the tail"
    judged = {part: (score.found, score.wrong) for part, score in scores.items()}
    assert {part: shares for part, shares in judged.items() if shares[0] < 0.95 or shares[1] > 0.02} == {}


def test_a_clean_run_has_nothing_to_explain(tmp_path: Path) -> None:
    # Requests follow one another: all wait alike for the step that is under way.
    run = play(tmp_path, [], Load(requests=60, tokens=60, rate=math.inf, flags=("--max-concurrency", "6")))
    found = run.result.derive(attribute_run)
    assert found.nothing_to_explain
    assert len(found.gaps) == 0 or found.gaps.excess_ns.max() < MS


@pytest.mark.parametrize(
    ("transport", "named", "doubts"),
    [
        ("wire", {"read_lag", "decode_step", "unknown"}, {"reads-late"}),
        ("httpx", {"decode_step", "unknown"}, {"client-busy"}),
        ("ring", {"decode_step"}, set()),
    ],
)
def test_a_client_that_stood_still_blames_no_one_else(
    transport: str, named: set[str], doubts: set[str], tmp_path: Path
) -> None:
    flags = ("--max-concurrency", "8", "--transport", transport)
    run = play(tmp_path, [], Load(requests=96, tokens=60, rate=math.inf, flags=flags), suspensions(8, 300))
    found = run.result.derive(attribute_run)
    assert {part for part in ROWS if found.gaps.share(part) >= 0.02} <= named
    assert doubts <= set(run.result.verdict.reasons)
    page = " ".join(" ".join(explain_run(run.result)).split())
    assert ("the client did not run for 0." in page) == ("unknown" in named)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_real_stalls_are_mostly_found(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    try:
        run, found = run_case(case, tmp_path)
    except CouldNotRun as error:
        if case.impairment is None:
            raise
        pytest.skip(str(error))  # it needs root
    round_trip_ns = 0 if case.impairment is None else round(2e6 * case.impairment.delay_ms)
    scores = score_run(run, found, round_trip_ns)
    # This machine may be busy: it stalls at times itself, which hides what was made on purpose.
    judged = {part: (scores[part].found, scores[part].wrong) for part in case.parts if part in scores}
    assert {part: shares for part, shares in judged.items() if shares[0] < 0.6 or shares[1] > 0.25} == {}


BAD = Impairment(50, jitter_ms=20, overtaking=0.25, doubled=0.05, loss=0.01, resent=0.01, bare=True)
FAR = Impairment(50)


_TRIES = 5


def run_over(impairment: Impairment, transport: str, place: Path) -> tuple[Result, ImpairedPath]:
    """A run over a path, and that path; skips where there can be none."""
    load = Load(requests=60, rate=15, tokens=60, step_ms=20, flags=("--transport", transport))
    place.mkdir()
    try:
        with ImpairedPath(impairment) as path:
            ends = Ends(path.start_server, path.start_client, SERVER)
            result = run_stalled(place, [], load, ends=ends).result
    except CouldNotRun as error:
        pytest.skip(str(error))
    return result, path


def was_held_up(path: ImpairedPath) -> bool:
    """Whether a busy machine held so many segments up on the path that they may be the tail."""
    delay_ns = round(path.impairment.delay_ms * 1e6)
    late = [each.given_ns[0] - each.came_ns - delay_ns >= 1_000_000 for each in path.segments]
    return sum(late) >= 0.002 * len(late)


def name_network_doubts(result: Result) -> set[str]:
    """The codes of the doubts about the network."""
    codes = (finding.rule.code for finding in result.verdict.findings)
    return {code for code in codes if code.startswith("network-")}


def explain(result: Result) -> str:
    """The explanation, on one line."""
    return " ".join(" ".join(explain_run(result)).split())


@pytest.mark.whole
@needs_ring
def test_the_ring_blames_a_bad_path(tmp_path: Path) -> None:
    result, _ = run_over(BAD, "ring", tmp_path / "run")
    assert name_network_doubts(result) == {"network-lossy", "network-in-tail"}
    found = result.derive(attribute_run)
    assert sum(map(found.gaps.share, IMPAIRED)) > 0.3
    assert {tail.share("http") for tail in (found.gaps, found.ttft)} == {0}
    assert "find what loses segments on the way from the server" in explain(result)


@pytest.mark.whole
@needs_ring
def test_the_wire_blames_no_one_for_a_bad_path(tmp_path: Path) -> None:
    """It counts what was lost or overtaken, but not the time that this took: that is unknown."""
    result, _ = run_over(BAD, "wire", tmp_path / "run")
    assert name_network_doubts(result) == {"network-lossy"}
    found = result.derive(attribute_run)
    for waits in (found.gaps, found.ttft):
        assert sum(map(waits.share, ("http", *IMPAIRED))) == 0
        assert waits.share("unknown") > 0.2
    assert "--transport ring: it shows the network's part of each wait" in explain(result)


@pytest.mark.whole
@needs_ring
@loop_over("transport", ["ring", "wire"])
def test_a_path_that_is_only_long_is_in_no_doubt(transport: str, tmp_path: Path) -> None:
    """The doubt is true where a busy machine held the path's segments up: then another run is made."""
    for attempt in range(_TRIES):
        result, path = run_over(FAR, transport, tmp_path / str(attempt))
        if not (doubts := name_network_doubts(result)):
            return
        assert doubts == {"network-in-tail"}
        assert was_held_up(path)
    pytest.skip(f"this machine held the path's segments up in each of {_TRIES} runs")


TABLES = read_tables("scores")


@loop_over_named(("natural", "injected", "found", "scores"), TABLES["rows"])
def test_a_row_is_scored_by_what_is_missing(
    natural: dict[str, int], injected: dict[str, int], found: dict[str, int], scores: dict[str, list[int]]
) -> None:
    made: dict[str, Score] = {}
    score_row(made, Wait(natural, injected), found)
    assert made == {part: Score(*score) for part, score in scores.items()}


def test_what_the_machine_was_late_with_may_be_in_any_step() -> None:
    for part in ("decode_step", "slow_step", "others_prefill"):
        scores: dict[str, Score] = {}
        found = {"decode_step": 10, "preemption": 60, "unknown": 20}
        score_row(
            scores, Wait({"decode_step": 10}, {"preemption": 80}, 7), {**found, part: found.get(part, 0) + 7}
        )
        assert scores == {"preemption": Score(80, 60, 0, 1)}


def test_scores_of_several_runs_are_added() -> None:
    one, other = {"queue": Score(50, 20, 30, 2)}, {"queue": Score(50, 50, 0, 1), "http": Score(9, 9, 0, 1)}
    merged = merge_scores([one, other])
    assert merged == {"queue": Score(100, 70, 30, 3), "http": Score(9, 9, 0, 1)}
    assert (merged["queue"].found, merged["queue"].wrong) == (0.7, 0.3)


ASKED = b"POST / HTTP/1.1\r\nX-Request-Id: r-7\r\n\r\n"
HUNDRED = bytes(100)


def sent(at_ms: float, begin: int, fate: str = "", given_ms: float = 0.0) -> Segment:
    """A segment of a response on a path of 5 ms."""
    given_ns = [round((given_ms or at_ms + 5) * MS)] if fate != "lost" else []
    return Segment(40_000, True, begin, HUNDRED, round(at_ms * MS), fate, given_ns, given_ns)


PATHS: dict[str, tuple[list[Segment], list[tuple[str, float, float]]]] = {
    "nothing": ([sent(10, 0), sent(20, 100)], []),
    "one was lost": (
        [sent(10, 0), sent(20, 100, "lost"), sent(30, 200), sent(45, 100)],
        [("retransmission", 25, 50)],
    ),
    "one was overtaken": ([sent(10, 0), sent(20, 100, "late", 60), sent(30, 200)], [("reordering", 25, 60)]),
    "one was late, alone": (
        [sent(10, 0), sent(20, 100, "late", 33), sent(50, 200)],
        [("path_delay", 25, 33)],
    ),
    "one was lost twice, and the next one waits on": (
        [sent(10, 0, "lost"), sent(12, 100, "late", 90), sent(40, 0, "lost"), sent(60, 0)],
        [("retransmission", 15, 65), ("path_delay", 65, 90)],
    ),
}


@loop_over(("segments", "stalls"), PATHS.values())
def test_the_path_knows_what_waited_for_what(
    segments: list[Segment], stalls: list[tuple[str, float, float]]
) -> None:
    path = ImpairedPath(Impairment(delay_ms=5.0))
    path.segments = [Segment(40_000, False, 0, ASKED, 1 * MS, "", [6 * MS], [6 * MS]), *segments]
    truth = Truth([], {"r-7": RequestRow(3, "r-7", 6 * MS, 6 * MS, 6 * MS, [])}, 10.0)
    rows = read_stalls(path, truth)
    assert [(row.kind, row.from_ns / MS, row.to_ns / MS) for row in rows] == stalls
    assert {number for row in rows for number in row.requests} <= {3}


def test_a_lost_request_is_one_that_was_sent_again() -> None:
    path = ImpairedPath(Impairment(delay_ms=5.0))
    path.segments = [
        Segment(40_000, False, 0, ASKED, 1 * MS, "lost"),
        Segment(40_000, False, 0, ASKED, 201 * MS, "", [206 * MS], [206 * MS]),
    ]
    truth = Truth([], {"r-7": RequestRow(3, "r-7", 206 * MS, 206 * MS, 206 * MS, [])}, 10.0)
    (row,) = read_stalls(path, truth)
    assert (row.kind, row.from_ns, row.to_ns, row.requests) == ("request_resent", 6 * MS, 206 * MS, [3])


def packet(seq: int, payload: bytes, flags: int = 0) -> bytes:
    """An IPv4 packet with TCP, to the client."""
    network = struct.pack(">BxHxxxxxB10x", 0x45, 40 + len(payload), 6)
    return network + struct.pack(">HHIxxxxBB6x", 80, 40_000, seq, 0x50, flags) + payload


def test_the_path_follows_sequence_numbers_that_begin_again() -> None:
    carrier = Carrier(0, 0, Impairment())
    for sent_packet in (packet(2**32 - 101, b"", 2), packet(2**32 - 100, HUNDRED), packet(0, HUNDRED)):
        carrier.meet(sent_packet, 0, to_client=True)
    assert [(segment.begin, segment.end) for segment in carrier.segments] == [(0, 100), (100, 200)]
