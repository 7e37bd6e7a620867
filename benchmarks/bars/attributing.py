"""Attributing: stalls made on purpose, and how much of their time the attribution finds in the right part."""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.clients.adapters import Installed
from benchmarks.harness.impaired_path import SERVER, ImpairedPath, Impairment, read_stalls
from benchmarks.harness.page import Bar, Section, markdown
from benchmarks.harness.process import ROOT, Command, CouldNotRun, checkout_env, run
from benchmarks.harness.scores import Score, merge_scores, score_run
from benchmarks.harness.stalled_run import Disturb, Ends, Load, StalledRun, burn, run_stalled, stop_client
from loadgen.features.attribution.attribution import Attribution, attribute_run

_LEAST_FOUND, _MOST_WRONG = 0.95, 0.02
_MOST_S, _MOST_MIB, _TOKENS = 10.0, 400.0, 10_000_000
_ABOUT = "Stalls made on purpose; server, path and client log their times."
_UNRUN = "could not run, see below"
_DELAY_MS = 5.0  # of the path, each way


@dataclass(frozen=True)
class Case:
    """What is done in one run, and the parts that it must be found in."""

    parts: Sequence[str]
    injections: Sequence[Mapping[str, Any]] = ()
    disturb: Disturb | None = None
    impairment: Impairment | None = None
    load: Load = field(default_factory=Load)


_SLOW: Mapping[str, Any] = {"kind": "slow_step", "ms": 80, "at_s": [1, 2.5, 4, 5.5, 7]}
_PREFILL: Mapping[str, Any] = {"kind": "prefill", "ms": 320, "steps": 4, "requests": [30, 70]}
_PREEMPTION: Mapping[str, Any] = {"kind": "preemption", "ms": [80, 200], "per_s": 2}
_QUEUE: Mapping[str, Any] = {"kind": "queue", "ms": [80, 200], "share": 0.1}
_HTTP: Mapping[str, Any] = {"kind": "http", "ms": [80, 200], "share": 0.1}
_OF_SERVER = ("slow_step", "others_prefill", "prefill", "queue", "http")
_ALL: Sequence[Mapping[str, Any]] = (
    {**_PREEMPTION, "per_s": 1},
    {**_SLOW, "at_s": [1, 4, 7]},
    {**_PREFILL, "requests": [60]},
    {**_QUEUE, "share": 0.05},
    {**_HTTP, "share": 0.05},
)
# A segment that is so late is overtaken by the next token's, and comes before it would be sent again.
_OVERTAKEN_MS = 18.0
# Few enough of each that the gaps they lengthen are beyond P99 of all.
CASES: Mapping[str, Case] = {
    "a slow step": Case(["slow_step"], [_SLOW]),
    "a long prefill": Case(["others_prefill", "prefill"], [_PREFILL], load=Load(long=_PREFILL["requests"])),
    "preemptions": Case(["preemption"], [_PREEMPTION]),
    "waits in the queue": Case(["queue"], [_QUEUE]),
    "waits before it": Case(["http"], [_HTTP]),
    "a stopped client": Case(["sent_late"], disturb=stop_client((3, 5, 7), 0.3)),
    "a slow step, next to busy loops": Case(["slow_step"], [_SLOW], disturb=burn(os.cpu_count() or 1, 9)),
    "lost segments": Case(["retransmission"], impairment=Impairment(_DELAY_MS, loss=0.005)),
    "reordered segments": Case(
        ["reordering"], impairment=Impairment(_DELAY_MS, late=0.005, late_ms=_OVERTAKEN_MS)
    ),
    "late segments": Case(
        ["path_delay"],
        impairment=Impairment(_DELAY_MS, late=0.005, late_ms=40),
        load=Load(rate=5, tokens=50, step_ms=50),  # later than the next token is a segment overtaken
    ),
    "lost requests": Case(["request_resent"], impairment=Impairment(_DELAY_MS, resent=0.1)),
    "all of the server's at once": Case([*_OF_SERVER, "preemption"], _ALL, load=Load(long=[60])),
    # Scrapes over a long path are too rare for preemptions: each takes four round trips.
    "all at once, over a bad path": Case(
        [*_OF_SERVER, "retransmission", "reordering"],
        _ALL[1:],
        impairment=Impairment(_DELAY_MS, loss=0.002, late=0.002, late_ms=_OVERTAKEN_MS),
        load=Load(long=[60]),
    ),
}
# Requests follow one another, so that all wait alike for the step that is under way.
_CLEAN = Case([], load=Load(flags=("--max-concurrency", "8"), rate=math.inf))


def run_case(case: Case, place: Path, seed: int = 1) -> tuple[StalledRun, Attribution]:
    """Run a case in an empty directory, and attribute what was measured; raises CouldNotRun."""
    with ExitStack() as stack:
        load, ends, path = case.load, Ends(), None
        if case.impairment is not None:
            path = stack.enter_context(ImpairedPath(replace(case.impairment, seed=seed)))
            ends = Ends(path.start_server, path.start_client, SERVER)
            load = replace(load, flags=(*load.flags, "--transport", "ring"))  # it sees each segment
        done = run_stalled(place, case.injections, load, case.disturb, seed=seed, ends=ends)
    if path is not None:
        truth = replace(done.truth, stalls=[*done.truth.stalls, *read_stalls(path, done.truth)])
        done = replace(done, truth=truth)
    return done, done.result.derive(attribute_run)


def score_case(case: Case, seed: int = 1) -> dict[str, Score]:
    """Run a case and score it, by part; raises CouldNotRun."""
    round_trip_ns = 0 if case.impairment is None else round(2e6 * case.impairment.delay_ms)
    with tempfile.TemporaryDirectory() as place:
        done, found = run_case(case, Path(place), seed)
        return score_run(done, found, round_trip_ns)


def attributing(installed: Installed, repeats: int) -> Section:
    """Each kind of stall alone, all at once, and none; and the cost of 10 million tokens."""
    bars: list[Bar] = []
    rows: list[tuple[str, ...]] = []
    faults: list[str] = []
    limit = f"≥ {100 * _LEAST_FOUND:g} %, wrong ≤ {100 * _MOST_WRONG:g} %"
    for name, case in CASES.items():
        try:
            scores = merge_scores(score_case(case, seed) for seed in range(1, min(repeats, 2) + 1))
        except CouldNotRun as error:
            bars.append(Bar(name, _UNRUN, limit, None))
            faults += [str(error)] if os.geteuid() == 0 or case.impairment is None else []
            continue
        bars += [_judge(f"{name}: in `{part}`", scores.get(part, Score()), limit) for part in case.parts]
        rows += [(name, part, *_cells(score)) for part, score in scores.items()]
    with tempfile.TemporaryDirectory() as place:
        _, found = run_case(_CLEAN, Path(place))
    clean = found.nothing_to_explain
    bars.append(Bar("a clean run", "nothing to explain" if clean else "a tail", "nothing to explain", clean))
    head = ("stalls", "part", "rows", "injected, ms", "found", "wrong", "unknown")
    return Section("Attribution of stalls", [*bars, *_cost()], [_ABOUT, "", *markdown(head, rows)], faults)


def _judge(what: str, score: Score, limit: str) -> Bar:
    if not score.injected_ns:
        return Bar(what, "no such stall in the tail", limit, None)
    shown = f"{100 * score.found:.1f} %, wrong {100 * score.wrong:.1f} %"
    return Bar(what, shown, limit, score.found >= _LEAST_FOUND and score.wrong <= _MOST_WRONG)


def _cells(score: Score) -> tuple[str, ...]:
    shares = (score.found, score.wrong, score.unknown)
    return str(score.rows), f"{score.injected_ns / 1e6:.0f}", *(f"{100 * share:.1f} %" for share in shares)


def _cost() -> list[Bar]:
    """The bars of `benchmarks/attribution_cost.py`; once, as its memory does not vary."""
    script = ROOT / "benchmarks" / "attribution_cost.py"
    stdout = run(Command([sys.executable, str(script), "--tokens", str(_TOKENS)], checkout_env())).stdout
    row = re.search(rf"^ *{_TOKENS} +([\d.]+) +[\d.]+ +([\d.]+)$", stdout, re.MULTILINE)
    assert row is not None, "attribution_cost.py no longer prints its line"
    seconds, mib = float(row[1]), float(row[2])
    what = f"attribution of {_TOKENS // 1_000_000} M tokens"
    return [
        Bar(what, f"{seconds:.1f} s", f"≤ {_MOST_S:g} s", seconds <= _MOST_S),
        Bar(f"{what}: memory beyond the records", f"{mib:.0f} MiB", f"≤ {_MOST_MIB:g} MiB", mib <= _MOST_MIB),
    ]
