"""How much memory a run takes, however long: joined from a journal's parts, saved, loaded, reported.

Run by hand: `python benchmarks/memory.py [--tokens 10000000 20000000 40000000]`, a process each. The bar is
600 MiB for the whole process, and little more for longer runs: only a request's columns are kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from loadgen.facts.run_facts import Client, Facts, Server
from loadgen.plan import profile
from loadgen.records.record import Record, Records
from loadgen.report import report
from loadgen.report.run_directory import ARRIVALS, Result

PER_REQUEST = 128
STREAMS = 1024
STEP_NS = 20_000_000
PART = 256  # requests in a frame of the journal
HEADER = (
    "tokens",
    "joined",
    "saved",
    "loaded",
    "figures",
    "verdict",
    "report",
    "anonymous",
    "CPU s",
    "B/token",
)
WIDTH = 10


def requests(tokens: int, per_message: int, first: int = 0) -> Iterator[Record]:
    """Answers of 128 tokens on 1024 streams, a message every 20 ms with some jitter."""
    rng = np.random.default_rng(first)
    messages = PER_REQUEST // per_message
    for index in range(first, first + tokens // PER_REQUEST):
        wave, slot = divmod(index, STREAMS)
        sent_ns = 1 + (wave * (messages + 5) + slot % 5) * STEP_NS
        jitter_ns = rng.integers(0, STEP_NS // 2, messages)
        arrival_ns = sent_ns + np.arange(3, messages + 3) * STEP_NS + jitter_ns
        yield Record(
            index=index,
            slot=slot,
            intended_ns=sent_ns,
            sent_ns=sent_ns,
            end_ns=int(arrival_ns[-1]),
            arrival_ns=arrival_ns,
            tokens=np.full(messages, per_message),
            planned_input=64,
            planned_output=PER_REQUEST,
            input_tokens=64,
            output_tokens=PER_REQUEST,
            usage=True,
            reads=messages + 1,
            shared_reads=index % 2,
        )


class Parts:
    """The frames of a journal; can be iterated repeatedly."""

    def __init__(self, tokens: int, per_message: int) -> None:
        self._tokens, self._per_message = tokens, per_message

    def __iter__(self) -> Iterator[Records]:
        for first in range(0, self._tokens // PER_REQUEST, PART):
            some = min(PART * PER_REQUEST, self._tokens - first * PER_REQUEST)
            packed = Records.from_records(requests(some, self._per_message, first)).pack()
            yield Records.unpack(packed)


def facts(count: int) -> Facts:
    """The facts of a run of `count` requests."""
    keys = {"input_len": 64, "output_len": PER_REQUEST, "num_prompts": count, "max_concurrency": STREAMS}
    now = datetime.now(UTC)
    return Facts(
        started=now,
        finished=now,
        command=["loadgen", "bench"],
        profile=profile.build({"name": "memory", "metric_percentiles": "50,90,99,99.9", **keys}),
        seed=0,
        seed_chosen=True,
        plan_digest="",
        prompt_format="ids",
        server=Server(url="http://h/v1/completions", engine="vLLM", model="m"),
        client=Client(
            transport="wire", cpu_s=1.0, wall_s=2.0, clock_step_ms=0.0, late_bodies=0, backlog_bytes=0
        ),
        environment={},
        requests=count,
    )


def peak_rss() -> int:
    """Peak resident memory of this process, in bytes, pages of mapped files included."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def anonymous() -> int:
    """Anonymous memory of this process now, in bytes; 0 where the system does not report it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def measured(asked: tuple[int, int, str]) -> list[float]:
    """Peak after each step and anonymous memory at the end, MiB; CPU of the figures, s; bytes per token."""
    tokens, per_message, directory = asked
    peaks: list[float] = []
    records = Records.join(Parts(tokens, per_message), spill=Path(directory))
    peaks.append(peak_rss())
    records.save(Path(directory) / ARRIVALS)
    peaks.append(peak_rss())
    run = Result(facts(len(records)), Records.load(Path(directory) / ARRIVALS))
    del records
    peaks.append(peak_rss())
    began = time.process_time()
    total = run.metrics.total_output_tokens
    seconds = time.process_time() - began
    peaks.append(peak_rss())
    assert run.verdict
    assert total == tokens // PER_REQUEST * PER_REQUEST
    peaks.append(peak_rss())
    assert report.render_report(run)
    peaks.append(peak_rss())
    columns = [*run.records.columns.values(), run.records.start, run.records.arrival_ns, run.records.tokens]
    kept = sum(column.nbytes for column in columns) / total
    return [*(peak / 2**20 for peak in (*peaks, anonymous())), seconds, kept]


def main() -> None:
    """Print a line for each length of run; peaks in MiB."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[10_000_000, 20_000_000, 40_000_000])
    parser.add_argument("--per-message", type=int, default=1, help="tokens in one message")
    parser.add_argument("--directory", default=None, help="for the files, 32 bytes a message; not in memory")
    args = parser.parse_args()
    print("".join(name.rjust(WIDTH) for name in HEADER))
    for tokens in args.tokens:
        with (
            tempfile.TemporaryDirectory(dir=args.directory) as directory,
            multiprocessing.get_context("spawn").Pool(1) as pool,
        ):
            ((*peaks, seconds, kept),) = pool.map(measured, [(tokens, args.per_message, directory)])
        cells = [str(tokens), *(f"{peak:.0f}" for peak in peaks), f"{seconds:.2f}", f"{kept:.1f}"]
        print("".join(cell.rjust(WIDTH) for cell in cells), flush=True)


if __name__ == "__main__":
    main()
