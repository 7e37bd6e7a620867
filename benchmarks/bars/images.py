"""Images: whether requests of a megabyte are sent when due, in memory that does not grow."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.clients.adapters import Installed
from benchmarks.harness import truth
from benchmarks.harness.page import Bar, Section, markdown, spread
from benchmarks.harness.process import Command, checkout_env, run
from loadgen.records.record import Records

_REQUESTS, _RATE_PER_S = 100, 10.0
_MANY, _FAST_PER_S = (400, 1600), 40.0  # of which memory is measured
_MOST_LATE_MS = 2.0
_MOST_MIB = 400.0
_TTFT_MS, _INTERVAL_MS, _ANSWER = 20.0, 2.0, 8
_SIZE = "768x512"
_IMAGES = ["--image-size", _SIZE, "--image-format", "png"]
_ABOUT = (
    f"PNG images of {_SIZE}, a megabyte each as a data URL. Lateness is from when a request was due"
    " to when its first bytes were given to the kernel; without images the requests are text alone. Memory is"
    " the peak of the larger of the client's two processes."
)
# The flags, how many requests, and how many a second.
_LOADS: dict[str, tuple[list[str], int, float]] = {
    "images": (_IMAGES, _REQUESTS, _RATE_PER_S),
    "no images": ([], _REQUESTS, _RATE_PER_S),
    **{f"{count} images": (_IMAGES, count, _FAST_PER_S) for count in _MANY},
}


@dataclass(frozen=True)
class Sent:
    """How late the requests of one run were, in ms, and what the run took."""

    p50_ms: float
    p99_ms: float
    peak_mib: float
    late_bodies: int
    body_kb: float  # of an image as base64; 0 without images
    verdict: str


def images(installed: Installed, repeats: int) -> Section:
    """A hundred requests with and without an image, then many with one, taking turns."""
    sent: dict[str, list[Sent]] = {name: [] for name in _LOADS}
    for _ in range(repeats):
        for name, load in _LOADS.items():
            sent[name].append(_run(*load))
    late_ms = [each.p99_ms for each in sent["images"]]
    most_mib = max(each.peak_mib for each in sent[f"{_MANY[1]} images"])
    size_mb = sent["images"][0].body_kb / 1000
    bars = [
        Bar(
            f"{_REQUESTS} requests of {size_mb:.2f} MB at {_RATE_PER_S:g} req/s: P99 lateness",
            f"{spread(late_ms, '{:.3f}')} ms; without images "
            f"{spread([each.p99_ms for each in sent['no images']], '{:.3f}')} ms",
            f"≤ {_MOST_LATE_MS:g} ms",
            statistics.median_high(late_ms) <= _MOST_LATE_MS,
        ),
        Bar(
            f"{_MANY[1]} such requests, {_MANY[1] * size_mb / 1000:.1f} GB: peak RSS",
            f"{most_mib:.0f} MiB",
            f"≤ {_MOST_MIB:g} MiB",
            most_mib <= _MOST_MIB,
        ),
    ]
    head = ("load", "P50 lateness", "P99", "peak memory", "bodies not ready", "verdict")
    rows = [
        (
            name,
            f"{spread([each.p50_ms for each in runs], '{:.3f}')} ms",
            f"{spread([each.p99_ms for each in runs], '{:.3f}')} ms",
            f"{spread([each.peak_mib for each in runs], '{:.0f}')} MiB",
            str(max(each.late_bodies for each in runs)),
            ", ".join(sorted({each.verdict for each in runs})),
        )
        for name, runs in sent.items()
    ]
    return Section("Images", bars, [_ABOUT, "", *markdown(head, rows)])


def _run(words: list[str], requests: int, rate_per_s: float) -> Sent:
    """One run of this checkout against a null server; raises CouldNotRun."""
    with tempfile.TemporaryDirectory() as out:
        file = Path(out) / "prompts.jsonl"
        rows = ({"prompt": f"What is on picture {i}?", "output_tokens": _ANSWER} for i in range(requests))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        argv = [sys.executable, "-m", "loadgen", "bench", "--model", "null", "--quiet", "--run-dir", out]
        argv += ["--backend", "openai-chat", "--dataset-path", str(file), "--seed", "1"]
        argv += ["--request-rate", f"{rate_per_s:g}", *words]
        with truth.null_server(Path(out) / "truth.jsonl", _TTFT_MS, _INTERVAL_MS) as server:
            cost = run(Command([*argv, "--base-url", server.base_url], checkout_env()))
        (directory,) = (path.parent for path in Path(out).glob("*/result.json"))
        records = Records.load(directory / "arrivals.npz")
        facts = json.loads((directory / "result.json").read_text("utf-8"))["loadgen"]
    p50_ms, p99_ms = np.percentile((records.sent_ns - records.intended_ns) / 1e6, (50, 99)).tolist()
    pictures = facts["data"]["images"]
    body_kb = 0.0 if pictures is None else pictures["mean_bytes"] * 4 / 3 / 1000
    return Sent(
        p50_ms,
        p99_ms,
        cost.peak_rss_bytes / (1 << 20),
        facts["client"]["late_bodies"],
        body_kb,
        facts["verdict"]["level"],
    )
