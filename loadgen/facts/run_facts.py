"""Run facts: everything about a run that is not in its records, each fact declared once.

A fact's type carries its row: how it is joined across shards, and its line in the report where it has one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Self, TypeVar, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import asdict
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_jsonable_python

from loadgen.base import parsing, untrusted
from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.structs import replace
from loadgen.engines.refusals import AdaptedField
from loadgen.facts.ceiling import Ceiling
from loadgen.figures.metrics import BlockFacts
from loadgen.figures.objectives import make_block_facts, make_metric_options
from loadgen.figures.per_request import MetricOptions
from loadgen.host.cpu_use import CpuUse
from loadgen.host.machine_state import MachineState
from loadgen.plan.planned_requests import DataFacts, WaitFacts, Waits
from loadgen.plan.profile import Profile
from loadgen.records.record import MOST_COUNT
from loadgen.server.checkpoint import Checkpoint
from loadgen.server.engine_config import EngineConfig
from loadgen.server.server_counters import RoleWindow, ServerWindow
from loadgen.settings.shard_settings import WHOLE, Share
from loadgen.settings.validation import ServerSettings, explain_format, explain_unknown

HEADROOM = 2  # times the messages per second of a run that a client should be able to time
HELD_PERCENT = 5.0  # a load is held while P99 of the gap error is under this share of the true gap

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Error(BaseModel, extra="forbid", frozen=True):
    """The absolute difference between reported and true values of one figure, over many events."""

    median_us: NotNegative  # of the absolute error, as the others
    p99_us: NotNegative
    max_us: NotNegative
    p99_percent: NotNegative  # of the true value's median

    @classmethod
    def from_pairs(cls, measured_ns: Int64, true_ns: Int64) -> Self:
        """Compute the error of (measured, true) pairs in ns, at least one; a true median < 1 ns is 1 ns."""
        off_us = np.abs(measured_ns - true_ns) / 1e3
        median_us, p99_us = np.percentile(off_us, (50, 99)).tolist()
        percent = 100 * p99_us / (max(float(np.median(true_ns)), 1.0) / 1e3)
        return cls(median_us=median_us, p99_us=p99_us, max_us=float(off_us.max()), p99_percent=percent)

    def percent(self, value_us: float) -> float:
        """Convert an error in µs to percent of the true median; 0 where P99 is 0."""
        return value_us / self.p99_us * self.p99_percent if self.p99_us else 0.0


class Calibration(BaseModel, extra="forbid", frozen=True):
    """One transport's self-test at one load."""

    measured: datetime
    environment: str  # a digest of machine and software: valid for this one only
    transport: str
    workers: int = Field(default=1, ge=1)  # that shared the load
    streams: int = Field(ge=1)  # of all of them, as every figure here
    interval_ms: Positive  # between messages of a stream
    tokens_per_message: int = Field(default=1, ge=1)
    ttft: Error
    gap: Error  # between successive messages of a stream
    e2e: Error
    events_per_read: NotNegative  # messages seen in one read, 1 at best
    capacity_tokens_per_s: NotNegative  # most with P99 gap error under 5 %; 0: no load was held
    capacity_streams: int = Field(ge=0)  # most held at `interval_ms` so
    capacity_bounded: bool = True  # a higher load failed; False: none was tried, there may be more
    cpu_us_per_token: NotNegative  # of the capturing processes

    def capacity_of(self, workers: int) -> float:
        """Estimate the messages per second that N workers hold, in proportion to those measured."""
        return self.capacity_tokens_per_s / self.tokens_per_message * workers / self.workers

    def headroom(self, messages_per_s: float, workers: int = 1) -> float:
        """Compute N workers' capacity ÷ a run's messages/s; 0 if no load was held, inf if it had none."""
        return self.capacity_of(workers) / messages_per_s if messages_per_s > 0 else float("inf")


class MemoryUse(BaseModel, extra="forbid", frozen=True):
    """Bytes of memory over the window."""

    peak_bytes: int
    steady_bytes: int  # median of the window's second half
    how: str  # it was learned, in words


class SampleSpread(BaseModel, extra="forbid", frozen=True):
    """Mean, least and greatest value of a quantity's samples in the window."""

    min: float
    mean: float
    max: float


class Energy(BaseModel, extra="forbid", frozen=True):
    """Joules and watts over the window; idle power is from before the run."""

    joules: float
    mean_w: float
    idle_w: float | None = None
    source: str  # in words
    parts: dict[str, float] = {}  # J by GPU or rail; they sum up to `joules`
    under: dict[str, float] = {}  # J of rails and GPUs whose power is part of those

    @property
    def is_of_cpu(self) -> bool:
        """Whether it is that of CPU packages and their memory, and of nothing else."""
        return bool(self.parts) and all(where.startswith("CPU ") for where in self.parts)

    def sum_by_host(self) -> dict[str, float]:
        """Return the joules by machine, "" for this one; the machine is named at the end of a place."""
        hosts: dict[str, float] = {}
        for where, joules in self.parts.items():
            host = where.partition(" of ")[2]
            hosts[host] = hosts.get(host, 0.0) + joules
        return hosts


class SensorSummary(BaseModel, extra="forbid", frozen=True):
    """Memory, energy, temperature and clocks over the measured window; `missing` explains each None."""

    duration_s: float
    period_s: float
    samples: int  # in the window
    cpu_ms_per_sample: float
    # Those with memory of the server, or all where that is not reported; and all of --power-url.
    gpus: tuple[str, ...] = ()
    server_gpus: tuple[str, ...] = ()  # those with its memory; empty: it is not reported
    gpus_how: str = ""
    server: MemoryUse | None = None  # GPU memory of the server
    device: MemoryUse | None = None  # GPU memory in use by all processes on those GPUs
    rss: MemoryUse | None = None  # host memory of the server's processes
    pss: MemoryUse | None = None
    system: MemoryUse | None = None  # memory of the machine in use
    energy: Energy | None = None  # of the board, else of the GPUs, else of the CPU
    cpu_energy: Energy | None = None  # of CPU packages and their memory, in no sum with a GPU's
    temperature_c: dict[str, SampleSpread] = {}
    sm_mhz: dict[str, SampleSpread] = {}
    memory_mhz: dict[str, SampleSpread] = {}
    held_back: dict[str, float] | None = None  # reason → share of the samples; None: not reported
    missing: tuple[str, ...] = ()  # what could not be read, and why

    def joules_per_token(self, output_tokens: int) -> float | None:
        """Return the window's joules per output token of the window; None without energy or tokens."""
        return self.energy.joules / output_tokens if self.energy is not None and output_tokens > 0 else None


FORMAT = 2
# Flags by which an engine takes more GPUs than those that share one copy of the model's layers.
_PARALLEL = re.compile(r"--(data|pipeline|prefill-context)-parallel-size|--(dp|pp)(-size)?\b|-(dp|pp)\b")
_NO_DATA = DataFacts()
_PROMPTS = {"prompt", "prompt_embeds", "messages", "input_ids", "input_embeds"}  # in the body, of any API


class Join(StrEnum):
    """The rule by which a fact of several shards becomes one of the whole run; merge applies them."""

    FIRST = "the first shard's: all have the same, or it alone is asked"
    PRESENT = "the first that is not empty"
    COMMON = "what all have; None where they differ"
    DIFFERENT = "the different ones, of the shards that sent something"
    LINES = "each line once, with its shards unless all have it"
    WORDS = "what each shard has, in one line"
    VALUES = "each value of any shard once"
    SUM = "the sum"
    LEAST = "the smallest"
    MOST = "the largest"
    FARTHEST = "the one farthest from 0"
    ANY = "whether any shard has it"
    DIGEST = "the sum of digests, in as many digits"
    PLACES = "those of all shards, in the plan's order"
    BY_NAME = "by name what all machines have, or the different ones"
    COUNTERS = "the first shard's that could read the server's counters: they count every shard's requests"
    CLIENT = "field by field"
    SELF_TEST = "the least able client's, with the worst errors of all"
    DECIDED = "by what makes the whole of the others"


class FactLine(msgspec.Struct, frozen=True):
    """A fact's line in the report: a text with {} for the fact, or for each of its entries."""

    text: str
    section: str = "notes"  # of the report


F = TypeVar("F")
R = TypeVar("R")


class SharedTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of recorded prompts that one sent before them begins with, 0 to 1, by their bytes."""

    share: float
    template_tokens: int = 0  # of a chat template, at most: the beginning of every prompt


class EarlierRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The TTFT of the same prompts under the same load in an earlier run that is kept, and in this one."""

    requests: int  # that both answered
    fell: int  # of them, whose TTFT is lower now
    before_ms: float  # medians
    now_ms: float
    ratio: float  # median of now ÷ before
    tpot_ratio: float  # the same of TPOT; 1 if unknown


class Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server that was measured: engine, version, model, URL."""

    url: str
    engine: str
    version: str = ""  # of the engine
    model: str
    model_root: str = ""  # where the server has its files
    max_model_len: int = 0  # tokens of its context; 0: not reported
    slots: int = 0  # requests that it runs at once; 0: not reported
    simulated: str = ""  # the embedded engine's timing preset


class Launched(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server was started for this run, secrets hidden."""

    how: str  # the engine, `container` or `command`
    image: str = ""  # of the container it ran in
    command: list[str]  # as a list of words
    environment: dict[str, str]  # variables added to the client's
    settings: ServerSettings  # the `[server]` table with the flags merged over it
    ready_s: float  # from its start until its health check succeeded
    first_token_s: float = 0.0  # from its start until it answered 8 tokens with one; 0: not measured
    owned: str  # how it is known that no other process answered


class Client(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The client's settings, and what its capturing processes reported of themselves."""

    transport: Annotated[str, Join.DIFFERENT]  # httpx, ring or wire
    why: Annotated[str, Join.DIFFERENT] = ""  # this transport, if it was not requested
    cpu_s: Annotated[float, Join.SUM] = 0.0  # CPU time of the capturing processes
    wall_s: Annotated[float, Join.MOST] = 0.0  # the time in which they used it
    clock_step_ms: Annotated[float, Join.FARTHEST] = 0.0  # by which the wall clock was set in the run
    reconnects: Annotated[int, Join.SUM] = 0  # connections that the server closed between turns of a session
    late_bodies: Annotated[int, Join.SUM] = 0  # request bodies that were not built when due
    backlog_bytes: Annotated[int, Join.MOST] = 0  # the most that waited to be decoded
    # The longest time it did not run at all: suspended, or its container paused.
    stopped_s: Annotated[float, Join.MOST] = 0.0
    segments: Annotated[int, Join.SUM] = 0  # TCP segments that a packet ring timed
    dropped_segments: Annotated[int, Join.SUM] = 0  # segments that the ring had no room for
    fallen_back: Annotated[int, Join.SUM] = (
        0  # requests timed by their sockets' reads although there was a ring
    )
    # Segments that waited until the client, reading late, had acknowledged the one before.
    held_segments: Annotated[int, Join.SUM] = 0
    workers: Annotated[int, Join.SUM] = 1  # capturing processes, each with a decoding one
    why_workers: Annotated[str, Join.DIFFERENT] = ""  # this number, if `--workers auto` chose it
    # CPU time of the busiest of several capturing processes.
    busiest_cpu_s: Annotated[float, Join.DECIDED] = 0.0
    cpus: Annotated[str, Join.DIFFERENT] = ""  # the CPUs that workers were pinned to, as 4-7; "": none

    @property
    def busiest_s(self) -> float:
        """CPU seconds of the capturing process that used most."""
        return self.busiest_cpu_s or self.cpu_s

    @property
    def busy_cores(self) -> float:
        """The cores that the busiest capturing process kept busy, 0 to 1: its loop is one thread."""
        return self.busiest_s / self.wall_s if self.wall_s > 0 else 0.0


_Time = Annotated[int, msgspec.Meta(ge=-(2**61), le=2**61)]  # a sum of two fits into 64 bits
_Count = Annotated[int, msgspec.Meta(ge=0, le=parsing.MOST_REQUESTS)]
_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
_Turns = Annotated[int, msgspec.Meta(ge=1, le=parsing.MOST_REQUESTS)]  # a recorded session may be long


class ClockReading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The offset between a machine's CLOCK_MONOTONIC and a reference clock, and its error."""

    boot: str  # of the machine: runs of the same boot have the same clock
    offset_ns: _Time  # the reference − CLOCK_MONOTONIC
    error_ns: _Time = -1  # it is off by no more; -1: unknown
    reference: str = "wall clock"  # or that of the driver, measured by round trips


class ShardFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which shard of a plan a run sent, and when it began."""

    number: _Count  # counted from 0
    of: Annotated[int, msgspec.Meta(ge=1, le=parsing.MOST_REQUESTS)]  # as many shards
    version: str  # loadgen's
    start_at_ns: _Time = 0  # when all shards were to begin, CLOCK_REALTIME; 0: each at once
    requests: _Count | None = None  # its own of the plan; None: as many as it sent
    sessions: bool = False  # whether sessions stay whole; else shard i mod `of` sends request i
    before: ClockReading  # of its clock, before the run
    after: ClockReading | None = None  # after it; None: the run was killed

    @property
    def name(self) -> str:
        """The shard as --shard names it."""
        return f"{self.number}/{self.of}"


class MergedShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the shards that a merged run was made of."""

    number: int  # counted from 0
    of: int  # as many shards
    requests: int  # that it sent, or planned and lost
    lost: str = ""  # why it left nothing, or not all
    began_ns: int = 0  # when it sent its first request, by the clock of the first shard; 0: it sent none
    offset_ns: int = 0  # added to its times; those of the first shard stay
    error_ns: int = 0  # by how much that may be off at most; -1: unknown
    reference: str = ""  # by which its clock was compared with that of the first; "": it is the same clock
    cores: float = 0.0  # kept busy by the busiest of its capturing processes
    # The prefix of its request ids; None: not stored, or sessions were kept whole.
    request_id_prefix: str | None = None

    @property
    def name(self) -> str:
        """The shard as --shard names it."""
        return f"{self.number}/{self.of}"


class SpanFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the ids and times of a run's spans are made of."""

    key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]  # request i's ids are its hash of i
    wall_offset_ns: _Time  # added to a record's times: CLOCK_REALTIME − CLOCK_MONOTONIC as the run began
    received: bool = False  # the server's own were awaited, by --receive-spans


class ImageProbe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request with images of which the server counted the text alone, after the run."""

    index: _Count  # its number in the plan
    text_tokens: _Count  # of its prompt without the images


class GreedyAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's answer to one prompt at temperature 0."""

    prompt: str
    text: str = ""
    token_ids: tuple[int, ...] = ()  # where the server reports them
    failure: str = ""  # why there is no answer
    cut: str = ""  # why it is incomplete: no time was left

    @property
    def usable(self) -> bool:
        """Whether the answer can be judged: it did not fail, and has text or ids, or is whole and empty."""
        return not self.failure and bool(self.text or self.token_ids or not self.cut)


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answers to the fixed prompts, which are the same for every checkpoint."""

    version: int  # of the set of prompts: only equal ones are compared
    answers: tuple[GreedyAnswer, ...]
    missing: str = ""  # why there are no answers
    form: str = "completion"  # or chat: the prompts were in a chat template

    @property
    def judged(self) -> tuple[GreedyAnswer, ...]:
        """The answers that can be judged."""
        return tuple(answer for answer in self.answers if answer.usable)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run that is not in its records; the two together make the report."""

    format: Annotated[int, Join.FIRST] = FORMAT  # version of this layout; any other is refused
    started: Annotated[datetime, Join.LEAST]  # when the run began
    finished: Annotated[datetime, Join.MOST]  # when it ended
    command: Annotated[list[str], Join.FIRST]  # the command line; values of headers are hidden
    profile: Annotated[Profile, Join.FIRST]  # every key of the workload that was run: docs/profiles.md
    seed: Annotated[int, Join.FIRST]  # that prompts and arrival times are derived from
    seed_chosen: Annotated[bool, Join.FIRST]  # whether loadgen chose it
    repeat: Annotated[int, Join.FIRST] = 0  # the run's number in its series, from 0
    # Earlier starts of this run of a series; prompts are derived from it too.
    attempt: Annotated[int, Join.FIRST] = 0
    runs: Annotated[int, Join.FIRST] = 1  # how many runs `--repeat` makes, each with its own prompts
    plan_digest: Annotated[str, Join.FIRST]  # of all requests and their times
    prompt_format: Annotated[str, Join.FIRST]  # what was sent
    ids_source: Annotated[str, Join.FIRST] = ""  # where token ids came from
    data: Annotated[DataFacts, Join.FIRST] = _NO_DATA
    server: Annotated[Server, Join.FIRST]
    tokenizer: Annotated[str | None, Join.PRESENT] = None  # as requested
    # The directory of the tokenizer that counts answers without usage; "": none.
    text_tokenizer: Annotated[str, Join.PRESENT] = ""
    warmups: Annotated[int, Join.SUM] = 0  # requests of the warm-up
    warmup_failures: Annotated[int, Join.SUM] = 0  # those of them that failed
    client: Annotated[Client, Join.CLIENT]
    environment: Annotated[dict[str, str], Join.BY_NAME]  # of the client, below
    # True if `ignore_eos` was not sent, since the engine does not accept it.
    ignore_eos_refused: Annotated[bool, Join.FIRST] = False
    # Fields that the server refused, and what was sent instead.
    adapted: Annotated[tuple[AdaptedField, ...], Join.FIRST, FactLine("{}", "adapted")] = ()
    reasoned: Annotated[int, Join.SUM] = 0  # answers whose first token was reasoning
    # Answers with reasoning in `usage` that was not streamed before their first token.
    hidden_reasoning: Annotated[int, Join.SUM] = 0
    notes: Annotated[tuple[str, ...], Join.LINES, FactLine("note: {}")] = ()  # as in the report
    cut_short: Annotated[str, Join.WORDS] = ""  # why the run ended early
    interrupted: Annotated[bool, Join.ANY] = False  # by a signal
    signal: Annotated[int, Join.MOST] = 0  # the number of the one that ended it; 0: none
    # True if the run had not ended when this was written: only in a journal.
    under_way: Annotated[bool, Join.ANY] = False
    # Facts that could not be determined after the last request, and why.
    unknown: Annotated[tuple[str, ...], Join.LINES, FactLine("not known: {}")] = ()
    # The rule (`--max-failures`, `--max-duration`, …) that ended the run, in words.
    stop_rule: Annotated[str, Join.WORDS] = ""
    # True if that rule was `--stop-when-saturated`.
    saturated: Annotated[bool, Join.ANY] = False
    recovered: Annotated[str, Join.DECIDED] = ""  # why only the journal of the run is left
    # Requests in flight when the client was killed, of which nothing else is known.
    unfinished: Annotated[int, Join.SUM] = 0
    journal_error: Annotated[str, Join.WORDS] = ""  # why the journal could not be written in full
    # The prefix of each `x-request-id`, before its index; None: not stored.
    request_id_prefix: Annotated[str | None, Join.COMMON] = None
    label: Annotated[str | None, Join.COMMON] = None  # `--label`
    metadata: Annotated[tuple[str, ...], Join.VALUES] = ()  # `--metadata`
    requests: Annotated[int, Join.DECIDED, msgspec.Meta(ge=1)]  # how many were planned
    # Requests of each session, in the plan's order; empty: no sessions.
    session_turns: Annotated[tuple[_Turns, ...], Join.FIRST] = ()
    # Predecessors of the requests of sessions; None: each waits for the one before it.
    session_waits: Annotated[WaitFacts | None, Join.FIRST] = None
    # Requests that a trace's clients cancelled: plan index, nanoseconds after sending, messages with text.
    cancels: Annotated[tuple[tuple[_Count, _Nanoseconds, _Count], ...], Join.FIRST] = ()
    # Digest of all bodies that were sent, in any order, without the model's name and a salt of ours.
    bodies_digest: Annotated[str, Join.DIGEST, msgspec.Meta(pattern="^[0-9a-f]*$")] = ""
    # Plan index → the data file's place, for first turns that ended their session early.
    turn_places: Annotated[tuple[tuple[int, str], ...], Join.PLACES] = ()
    repeated_prompts: Annotated[int, Join.FIRST] = 0  # prompts of the plan that equal an earlier one of it
    # The addresses of several `--base-url`, else empty: slot s sends to number s mod as many.
    targets: Annotated[tuple[str, ...], Join.FIRST] = ()
    # The part of the plan that this run sent; None: all of it.
    shard: Annotated[ShardFacts | None, Join.DECIDED] = None
    lost: Annotated[tuple[str, ...], Join.DECIDED] = ()  # the workers and shards that were lost, and why
    # Causes that throttled this machine during the run, in words.
    throttled: Annotated[tuple[str, ...], Join.LINES] = ()
    # CPUs in use on this machine; None: the server is elsewhere, or `--no-observe`.
    cpu_use: Annotated[CpuUse | None, Join.PRESENT] = None
    # The server's own counters over the run; None: not scraped.
    window: Annotated[ServerWindow | None, Join.COUNTERS] = None
    # Counts of each server behind the router, by `--metrics-url`; empty: none was given.
    role_windows: Annotated[tuple[RoleWindow, ...], Join.PRESENT] = ()
    launched: Annotated[Launched | None, Join.PRESENT] = None  # how it was started; None: it was not
    checkpoint: Annotated[Checkpoint | None, Join.PRESENT] = None  # what the model's files declare
    as_run: Annotated[EngineConfig | None, Join.PRESENT] = None  # what the engine reports that it runs
    # Memory, energy, heat, clocks here; None: server elsewhere or simulated, or `--no-observe`.
    sensed: Annotated[SensorSummary | None, Join.PRESENT] = None
    # The machine of the server before the warm-up: settings, heat, memory; None: as `sensed`.
    state_before: Annotated[MachineState | None, Join.PRESENT] = None
    state_after: Annotated[MachineState | None, Join.PRESENT] = None  # the same after the last request
    # How the prefix cache was kept from knowing prompts of earlier runs, or why not; "": nothing was done.
    cache_reset: Annotated[str, Join.PRESENT, FactLine("prefix cache: {}", "launched")] = ""
    # Text that recorded prompts share, if the server found some in its cache; None: not looked for.
    shared_texts: Annotated[SharedTexts | None, Join.PRESENT] = None
    # The first run that sent the same recorded prompts; None: there was none, or cached tokens are reported.
    earlier: Annotated[EarlierRun | None, Join.PRESENT] = None
    traced: Annotated[str, Join.WORDS] = ""  # where the engine's profiler trace is; "": there is none
    # This client's error when `loadgen selftest` last ran on this machine.
    calibration: Annotated[Calibration | None, Join.SELF_TEST] = None
    cell: Annotated[Cell | None, Join.FIRST] = None  # its place in a campaign; None: in none
    fingerprint: Annotated[Fingerprint | None, Join.PRESENT] = None  # answers to greedy prompts
    # Requests with images whose text the server counted alone; empty: no images, or it reports their tokens.
    image_probes: Annotated[tuple[ImageProbe, ...], Join.PRESENT] = ()
    ceiling: Annotated[Ceiling | None, Join.PRESENT] = None  # what the machine could do at best
    no_ceiling: Annotated[str, Join.PRESENT] = ""  # why that is not known, and what to pass
    # GPUs that the server runs on, by `--gpus` or `--hardware`; 0: neither was given.
    gpus: Annotated[int, Join.MOST, msgspec.Meta(ge=0)] = 0
    # Where the run's spans, metrics and figures went, and which did not arrive.
    telemetry: Annotated[tuple[str, ...], Join.LINES, FactLine("{}")] = ()
    spans: Annotated[SpanFacts | None, Join.COMMON] = None  # None: no request named one
    shards: Annotated[tuple[MergedShard, ...], Join.DECIDED] = ()  # those that this run was merged of

    @classmethod
    def read_stored(cls, ours: Mapping[str, Any]) -> Self:
        """Read the facts of a stored result or journal.

        Raises ValueError, or OtherVersion of another format or of a key that this version lacks.
        """
        writer = untrusted.read_mapping(ours.get("environment")).get("loadgen")
        if other := explain_format(ours.get("format"), FORMAT, writer):
            raise OtherVersion(other)
        known = {name: ours[name] for name in find_fact_types() if name in ours}
        try:
            return cls(**{name: _read_fact(name, value) for name, value in known.items()})
        except TypeError as error:  # one is missing
            raise ValueError(str(error)) from None

    def json(self) -> dict[str, Any]:
        """Encode the facts as in results and journals; a number may be NaN or infinite."""
        facts: dict[str, Any] = to_jsonable_python(asdict(self), by_alias=True, fallback=asdict)
        if not self.cancels:
            del facts["cancels"]  # few traces have any: other runs are written as before
        return facts

    def encode(self) -> bytes:
        """Encode the facts as JSON bytes for the journal."""
        return json.dumps(self.json()).encode()

    def lines(self, section: str) -> Iterator[str]:
        """Yield the report lines of a section's facts, not of empty ones; that of its own name last."""
        rows = sorted(list_annotations(Facts, FactLine).items(), key=lambda item: item[0] == section)
        for name, line in rows:
            value = getattr(self, name)
            if line.section == section and value:
                for entry in value if isinstance(value, tuple) else (value,):
                    yield line.text.format(entry)

    @property
    def partial(self) -> str:
        """Why the run has only some of the plan's requests, in words; "" if it has all."""
        return self.cut_short or self.stop_rule or self.recovered

    @property
    def prompt_replaced(self) -> bool:
        """Whether --extra-body replaces every planned prompt by one, which `bench` refuses to send."""
        fields = _PROMPTS | ({"text"} if self.profile.backend == "sglang" else set())
        return bool(fields & set(self.profile.extra_body))

    @property
    def cancels_some(self) -> bool:
        """Whether requests were to be cancelled, by the profile or as a trace recorded it."""
        return self.profile.cancel_point is not None or bool(self.cancels)

    @property
    def gpu_count(self) -> int:
        """The number of GPUs the server ran on: as given, as its memory shows, or as started; 0: unknown."""
        if self.gpus or self.server.simulated:
            return self.gpus
        if self.sensed is not None and self.sensed.server_gpus:
            return len(self.sensed.server_gpus)
        if self.launched is None or "gpu" not in self.environment:
            return 0
        replicated = any(_PARALLEL.match(word) for word in self.launched.command)
        return 0 if replicated else self.launched.settings.tensor_parallel or 0

    @property
    def tensor_parallel(self) -> int | None:
        """The GPUs that share the model, as the engine reports or was started; None where neither says."""
        reported = self.as_run.tensor_parallel if self.as_run is not None else None
        return reported or (self.launched.settings.tensor_parallel if self.launched is not None else None)

    @property
    def speculates(self) -> bool:
        """Whether the server is known to decode speculatively, by its settings or its counters of drafts."""
        window = self.window
        drafted = window is not None and (window.drafts or window.draft_tokens or window.accept_length)
        return bool(drafted or (self.as_run is not None and self.as_run.speculative))

    @property
    def share(self) -> Share:
        """The share of the plan that this run was to send."""
        return WHOLE if self.shard is None else Share(self.shard.number, self.shard.of)

    @property
    def whole_load(self) -> bool:
        """Whether this run sent the server's whole load, not one of several shards'."""
        return self.share.of == 1

    @property
    def own_window(self) -> ServerWindow | None:
        """The server's counters over the run; None if not scraped, or if they count other runs too."""
        window = self.window if self.whole_load else None
        return None if window is None or window.error else window

    @property
    def own_requests(self) -> int:
        """The number of the plan's requests that this run was to send."""
        own = None if self.shard is None else self.shard.requests
        return self.requests if own is None else own

    @property
    def own_sessions(self) -> int:
        """The number of the plan's sessions that this run was to send; 0 without sessions."""
        return self.share.count_slots(len(self.session_turns))

    def make_waits(self) -> Waits | None:
        """Make what the requests of sessions wait for; None: each for the one before it.

        Raises ValueError where it is not of these sessions.
        """
        if self.session_waits is None:
            return None
        waits = self.session_waits.waits
        waits.check(np.concatenate(([0], np.cumsum(self.session_turns))).astype(np.int64))
        return waits

    @property
    def queues(self) -> int:
        """The number of queues from which slots take requests or sessions: slot s from queue s mod this.

        A process has its own sessions; the requests of a shard are for all of its processes.
        """
        shards = self.share.of if self.session_turns else max(self.share.of, len(self.shards))
        processes = self.client.workers if self.session_turns else 1
        return min(max(shards * processes, 1), MOST_COUNT)

    @property
    def max_concurrency(self) -> int | None:
        """The most requests that this run may have in flight; None: no limit."""
        return self.share.divide_limit(self.profile.max_concurrency)

    @property
    def held_concurrency(self) -> int | None:
        """The concurrency, or sessions at once, that this run keeps up; None: an open loop."""
        return self.share.divide_limit(self.profile.held_concurrency)

    @property
    def planned_rate_per_s(self) -> float:
        """This run's requests per second as planned, the mean of a trace or a schedule; inf: all at once."""
        return self.data.rate_per_s(self.profile.mean_rate_per_s) / self.share.of

    def ask(self) -> MetricOptions:
        """Make the options of which figures to compute; whether arrivals are tokens is judged later."""
        return replace(make_metric_options(self.profile), gpus=self.gpus)

    def block(self) -> BlockFacts:
        """Make the settings of the load that the result block shows; a trace's rate is its mean.

        The rate of sessions is not one of requests, as which the block would show it.
        """
        rate_per_s, most = math.inf if self.session_turns else self.planned_rate_per_s, self.max_concurrency
        return replace(make_block_facts(self.profile), request_rate_per_s=rate_per_s, max_concurrency=most)


class OtherVersion(UsageError):
    """Another version of loadgen wrote a run, in another format or with a key that this one lacks."""


def _read_fact(name: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, find_fact_types()[name], strict=False, dec_hook=_validate)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from None


def _validate(kind: type[BaseModel], value: Any) -> BaseModel:
    """Validate a value as a pydantic model; raises ValueError with the first error, or OtherVersion."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        if unknown := explain_unknown(error):
            raise OtherVersion(unknown) from None
        first = error.errors()[0]
        raise ValueError(": ".join([*map(str, first["loc"]), first["msg"]])) from None


def mask_texts(value: F, mask: Callable[[Any], Any]) -> F:
    """Return facts, or a part of them, with `mask` applied to every text in them."""
    if isinstance(value, BaseModel):
        return type(value).model_validate(mask(value.model_dump()))
    if isinstance(value, msgspec.Struct):
        held = asdict(value)
        plain = [name for name, each in held.items() if isinstance(each, str | dict | list)]
        masked = dict(zip(plain, mask([held[name] for name in plain]), strict=True))
        nested = {name: mask_texts(held[name], mask) for name in held.keys() - masked.keys()}
        return type(value)(**masked, **nested)
    if isinstance(value, tuple) and not (value and isinstance(value[0], int | float)):  # they may be many
        return type(value)(mask_texts(each, mask) for each in value)
    kept: F = mask(value) if isinstance(value, str | dict | list) else value  # else it holds no text
    return kept


@cache
def find_fact_types() -> dict[str, Any]:
    """Return each fact's annotated type by name."""
    return get_type_hints(Facts, include_extras=True)


def list_annotations(kind: type, row: type[R]) -> dict[str, R]:
    """Map the facts of `kind` (Facts or Client) to the rows of class `row` in their type annotations."""
    types = find_fact_types() if kind is Facts else get_type_hints(kind, include_extras=True)
    return {
        name: each
        for name, type_ in types.items()
        for each in getattr(type_, "__metadata__", ())
        if isinstance(each, row)
    }


ATTACHED = "attached"  # in place of the name of a start: the server was running before


class Cell(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """One checkpoint on one server under one profile, once; one profile and repeat have the same prompts."""

    campaign: str
    checkpoint: str  # its name in the campaign's file: the row it is compared in
    server: str
    profile: str
    repeat: int  # counted from 0
    start: str  # which start of the server it ran on: runs of one start share what that start had of luck

    @property
    def arm(self) -> str:
        """The name of the checkpoint on its server, which comparisons group runs by."""
        return f"{self.checkpoint} on {self.server}"
