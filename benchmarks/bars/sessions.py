"""Sessions: whether two hundred of them, with think times, send each turn when it is due."""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.clients.adapters import Installed
from benchmarks.harness import truth
from benchmarks.harness.page import Bar, Section, markdown, spread
from benchmarks.harness.process import Command, checkout_env, run
from loadgen.records.record import Records

_SESSIONS, _TURNS = 200, 10
_THINK_S = (0.5, 1.5)
_TTFT_MS, _INTERVAL_MS, _ANSWER = 20.0, 2.0, 16
_WORDS = 50  # of a user's message
_BEGINS_PER_S = 50.0
_MOST_LATE_MS = 1.0
_ABOUT = (
    f"{_SESSIONS} sessions of {_TURNS} turns, think times of {_THINK_S[0]:g} to {_THINK_S[1]:g} s,"
    f" responses of {_ANSWER} tokens. Lateness runs from when a turn was due to when its request was given to"
    " the kernel; first turns, which have no think time, are shown apart."
)
_LOADS = {
    f"{_SESSIONS} at once": ["--max-concurrency", str(_SESSIONS)],
    f"{_BEGINS_PER_S:g} begin a second": ["--request-rate", f"{_BEGINS_PER_S:g}"],
}


@dataclass(frozen=True)
class Lateness:
    """How late the turns of one run were, in ms."""

    p50_ms: float
    p99_ms: float
    firsts_p99_ms: float  # of the first turns, which the other two leave out
    verdict: str


def sessions(installed: Installed, repeats: int) -> Section:
    """Two hundred sessions at once, and as many that begin at a rate."""
    late: dict[str, list[Lateness]] = {name: [] for name in _LOADS}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "conversations.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in _rows()), "utf-8")
        for _ in range(repeats):
            for name, words in _LOADS.items():
                late[name].append(_run([*words, "--dataset-path", str(file)]))
    bars = [
        Bar(
            f"{name}: P99 lateness of their turns",
            f"{spread([each.p99_ms for each in runs], '{:.3f}')} ms",
            f"≤ {_MOST_LATE_MS:g} ms",
            statistics.median_high([each.p99_ms for each in runs]) <= _MOST_LATE_MS,
        )
        for name, runs in late.items()
    ]
    head = ("sessions", "P50 lateness", "P99", "P99 of first turns", "verdict")
    rows = [
        (
            name,
            *(
                f"{spread([getattr(each, key) for each in runs], '{:.3f}')} ms"
                for key in ("p50_ms", "p99_ms", "firsts_p99_ms")
            ),
            ", ".join(sorted({each.verdict for each in runs})),
        )
        for name, runs in late.items()
    ]
    return Section("Sessions", bars, [_ABOUT, "", *markdown(head, rows)])


def _rows() -> Iterator[dict[str, object]]:
    """The conversations, the same each time."""
    drawn = random.Random(1)  # nosec B311 # think times
    for session in range(_SESSIONS):
        for turn in range(_TURNS):
            row = {"conversation_id": f"c{session}", "turn": 2 * turn + 1, "role": "user"}
            words = " ".join(f"word{session}" for _ in range(_WORDS))
            yield {**row, "content": words, "max_tokens": _ANSWER, "delay_seconds": drawn.uniform(*_THINK_S)}
            answer = " ".join(f"reply{turn}" for _ in range(_ANSWER))
            yield {**row, "turn": 2 * turn + 2, "role": "assistant", "content": answer}


def _run(words: Sequence[str]) -> Lateness:
    """One run of this checkout against a null server; raises CouldNotRun."""
    with tempfile.TemporaryDirectory() as out:
        argv = [sys.executable, "-m", "loadgen", "bench", "--model", "null", "--quiet", "--run-dir", out]
        argv += ["--backend", "openai-chat", *words]
        with truth.null_server(Path(out) / "truth.jsonl", _TTFT_MS, _INTERVAL_MS) as server:
            run(Command([*argv, "--base-url", server.base_url], checkout_env()))
        (directory,) = (path.parent for path in Path(out).glob("*/result.json"))
        records = Records.load(directory / "arrivals.npz")
        facts = json.loads((directory / "result.json").read_text("utf-8"))["loadgen"]
    late_ms = (records.sent_ns - records.intended_ns) / 1e6
    first = records.index % _TURNS == 0
    p50_ms, p99_ms = np.percentile(late_ms[~first], (50, 99)).tolist()
    return Lateness(p50_ms, p99_ms, float(np.percentile(late_ms[first], 99)), facts["verdict"]["level"])
