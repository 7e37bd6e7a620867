"""Runs of a day, on virtual time: what is kept of a request is in the journal, and nowhere else."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fakes.scripted_server import DONE, HEAD, LAST, chunk, target_of, token, usage
from loadgen.base import clock
from loadgen.base.arrays import Int64
from loadgen.engines.engines import UNKNOWN
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.records.journal import Journal
from loadgen.run import measurement
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.live_display import LineDisplay
from loadgen.run.measurement import measure
from loadgen.transport.capture import Capture, Counters, Health, pack_int64s
from loadgen.transport.sending.job import Job

S_NS = 1_000_000_000
HOURS, MESSAGES = 24, 16
# In waves: with one request at a time each would be a frame of the journal, and the test would take long.
WAVE, WAVES_AN_HOUR = 20, 20
WAVE_NS = 3600 * S_NS // WAVES_AN_HOUR
PER_HOUR = WAVE * WAVES_AN_HOUR
REQUESTS = HOURS * PER_HOUR
GAP_NS = 20_000_000
WARM, LATE, LAST_HOUR = 2, HOURS - 7, HOURS - 1  # what fills once is full by WARM; traced from LATE on
MOST_BYTES, MOST_BLOCKS = 4.0, 0.2  # that may stay of a request beyond its columns: no pointer, no object
SLACK = 1.6  # of a packed frame: what the encoder took more than it needed
POLLS = 20  # between two waves

EVENTS = [*[token()] * (MESSAGES - 1), token("z", "length"), usage(MESSAGES), DONE]
READS = [HEAD + chunk(EVENTS[0]), *map(chunk, EVENTS[1:-1]), chunk(EVENTS[-1]) + LAST]
RAW, LENGTHS = b"".join(READS), pack_int64s(map(len, READS))
AFTER_NS: Int64 = (1 + np.arange(len(READS), dtype=np.int64)) * GAP_NS


@dataclass
class Clock:
    """CLOCK_MONOTONIC as the test has it."""

    ns: int = 1000 * S_NS

    def now_ns(self) -> int:
        return self.ns


def answer(index: int, sent_ns: int) -> Capture:
    """A whole stream, its messages evenly apart; each is stamped 10 µs before it is in hand."""
    arrived_ns = sent_ns + AFTER_NS
    stamps = np.stack([arrived_ns // S_NS, arrived_ns % S_NS], axis=1)
    return Capture(
        index=index, slot=index % 8, intended_ns=sent_ns, sent_ns=sent_ns, end_ns=int(arrived_ns[-1]),
        raw=RAW, read_lengths=LENGTHS, seen_ns=(arrived_ns + 10_000).tobytes(), kernel=stamps.tobytes(),
    )  # fmt: skip


@dataclass
class Day:
    """A run of a day that takes seconds: it advances the clock, and measures the process as it goes."""

    job: Job
    clock: Clock
    counters: Counters = field(default_factory=Counters)
    health: Health | None = None
    died: str = ""
    lost: int = 0
    blocks: dict[int, int] = field(
        default_factory=dict
    )  # the interpreter holds, by the hours that have passed
    stayed_bytes: int = 0  # of what was allocated from LATE to LAST_HOUR

    def captures(self) -> Iterator[Capture | None]:
        begin_ns = self.clock.ns
        for wave in range(HOURS * WAVES_AN_HOUR):
            sent_ns = begin_ns + wave * WAVE_NS
            for poll in range(1, POLLS + 1):
                self.clock.ns = sent_ns + poll * WAVE_NS // POLLS
                yield None
            if wave % WAVES_AN_HOUR == 0:  # what waited is written by now
                self.look(wave // WAVES_AN_HOUR)
            first, after = wave * WAVE, (wave + 1) * WAVE
            yield from (answer(index, sent_ns) for index in range(first, after))
            self.counters.publish(after, after, after * len(READS))
        self.health = Health(begin_ns, self.clock.ns, S_NS, 0, 0, 0)

    def look(self, hour: int) -> None:
        """Note the size at the hours of interest; tracing takes long, so it is begun late."""
        if hour in (WARM, LATE):
            self.blocks[hour] = sys.getallocatedblocks()
        if hour == LATE:
            tracemalloc.start()
        if hour == LAST_HOUR:
            self.stayed_bytes = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()

    @property
    def kept(self) -> tuple[float, float]:
        """Of each request: the bytes that stayed, and the objects."""
        objects = self.blocks[LATE] - self.blocks[WARM]
        return (self.stayed_bytes / ((LAST_HOUR - LATE) * PER_HOUR), objects / ((LATE - WARM) * PER_HOUR))

    def stop(self) -> None:
        raise AssertionError("nobody asked for it")

    def kill(self) -> None:
        """Nothing to kill."""


def a_day() -> Plan:
    keys = {
        "name": "day", "input_len": 8, "output_len": MESSAGES, "num_prompts": REQUESTS,
        "max_concurrency": WAVE,
    }  # fmt: skip
    return plan.make(profile.build(keys), ModelTarget(UNKNOWN, "m"), Seed(7, chosen=True))


def run_of_a_day(monkeypatch: pytest.MonkeyPatch, journal: Journal) -> tuple[Day, Outcome]:
    days: list[Day] = []
    own = Clock()

    def start(job: Job, transport: str) -> Day:
        days.append(Day(job, own))
        return days[0]

    monkeypatch.setattr(clock, "now_ns", own.now_ns)
    monkeypatch.setattr(measurement, "start_capture", start)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        watch = Watch(LineDisplay(nowhere), "day", journal=journal)
        outcome = measure(a_day(), TransportOptions(target_of("127.0.0.1", 9)), watch)
    return days[0], outcome


@pytest.mark.long
def test_a_day_keeps_nothing_of_a_request_but_its_columns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal.bin")
    day, outcome = run_of_a_day(monkeypatch, journal)
    assert journal.error == ""
    kept_bytes, objects = day.kept
    assert kept_bytes < MOST_BYTES
    assert objects < MOST_BLOCKS
    # Once it is over: the columns, and every word once.
    records = outcome.records
    assert outcome.cut_short == ""
    assert len(records) == REQUESTS
    assert records.ok.all()
    assert (records.output_tokens == MESSAGES).all()
    assert (np.diff(records.start) == MESSAGES).all()
    assert records.index.tolist() == list(range(REQUESTS))
    assert records.sent_ns[-1] - records.sent_ns[0] == (HOURS * WAVES_AN_HOUR - 1) * WAVE_NS
    assert (
        records.arrival_ns.reshape(REQUESTS, MESSAGES) == records.sent_ns[:, None] + AFTER_NS[:MESSAGES]
    ).all()
    assert len(set(map(id, records.finish_reasons))) == 1
    assert set(records.finish_reasons) == {"length"}
    journal.close()


@pytest.mark.long
def test_a_day_whose_disk_is_full_keeps_its_requests_packed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What cannot be written stays in memory as it would lie on disk, not as objects."""
    said: list[str] = []
    journal = Journal(tmp_path / "nowhere" / "journal.bin", said.append)
    day, outcome = run_of_a_day(monkeypatch, journal)
    assert len(said) >= 1
    assert journal.error
    packed = len(outcome.records.pack()) / REQUESTS
    kept_bytes, objects = day.kept
    assert packed < kept_bytes < SLACK * packed + MOST_BYTES
    assert objects < MOST_BLOCKS
    assert len(outcome.records) == REQUESTS
