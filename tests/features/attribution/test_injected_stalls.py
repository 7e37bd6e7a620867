"""Stalls on purpose: the attribution finds each one's time in the right part, in virtual and in real time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from benchmarks.bars.attributing import CASES, run_case
from benchmarks.harness.process import CouldNotRun
from benchmarks.harness.scores import score_run
from benchmarks.harness.stalled_run import Load, StalledRun, read_truth
from builders.provocations import suspensions
from fakes.virtual_network import LATENCY_NS, VirtualServer
from fakes.virtual_run import BASE_URL, run_on
from fakes.virtual_servers import engine_server
from loadgen import cli
from loadgen.features.attribution.attribution import ROWS, Attribution, attribute_run
from loadgen.features.attribution.explain_command import explain_run
from loadgen.report import run_directory

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


def judge(run: StalledRun, found: Attribution, parts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Of each part that something was injected into, what was found, and what is in wrong ones."""
    scores = score_run(run, found)
    assert set(parts) <= set(scores), f"only {set(scores)} in the tail"
    return {part: (score.found, score.wrong) for part, score in scores.items()}


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
    judged = judge(run, run.result.derive(attribute_run), parts)
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
