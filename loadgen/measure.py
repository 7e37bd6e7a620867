"""Measure: a plan is fired and decoded; Ctrl-C ends it early with what there is."""

from __future__ import annotations

import gc
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType

import msgspec

from loadgen.decode import Decoder
from loadgen.errors import UsageError
from loadgen.generate import Generate
from loadgen.job import Health, Job, Limits, Target
from loadgen.live import Display, Progress
from loadgen.plan import Plan
from loadgen.record import Record, Records
from loadgen.runner import Run, start

_SPARE_FILES = 64
_LEAST_BYTES = 64 << 20  # that an answer may have
_TOKEN_BYTES = 16 << 10  # a token's message: twenty logprobs are 3 kB
_BYTES_SO_FAR = 16  # a token, text and id, in the message of each later one: SGLang's /generate repeats all
UNHEARD = Health(0, 0, 0, 0, 0, 0)  # of a capturing process that died


def never() -> bool:
    """As `Manner.gone` of a server whose end nobody would see."""
    return False


class Manner(msgspec.Struct, frozen=True):
    """How requests travel, whatever they say."""

    target: Target
    transport: str = "wire"
    http2: bool = False
    request_id_prefix: str = "loadgen-"
    keep_text: bool = False
    gone: Callable[[], bool] = never  # whether the server has ended, where that is known


class Outcome(msgspec.Struct, frozen=True):
    """What came of a plan; `cut_short` says why where it was not carried to its end."""

    records: Records
    health: Health
    cut_short: str
    interrupted: bool


@dataclass
class Interrupts:
    """Counts Ctrl-C: the first asks the run to stop, the second ends the command."""

    run: Run
    count: int = field(default=0, init=False)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            self.run.kill()
            raise KeyboardInterrupt
        self.run.stop()


@contextmanager
def _interrupts(run: Run) -> Iterator[Interrupts]:
    interrupts = Interrupts(run)
    previous = signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)
        run.kill()


@contextmanager
def _no_collector() -> Iterator[None]:
    """Decoding makes no cycles, and many objects for the collector to look at in vain."""
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()  # what start-up made stays: looking at it would copy the pages shared with the fork
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def measure(
    plan: Plan,
    manner: Manner,
    display: Display,
    title: str,
    during: AbstractContextManager[object],
) -> Outcome:
    """Fire a plan and decode what comes back; raises UsageError when it needs too much.

    `during` is entered once the capturing process has been forked: what it starts may be a thread.
    """
    job = _job(plan, manner)
    _allow_files(job)
    decoder = Decoder(plan.dialect, plan.profile.stream, manner.keep_text)
    input_lens, output_lens = plan.prompts.input_lens, plan.prompts.output_lens
    rows: list[Record] = []
    run = start(job, manner.transport)
    progress = Progress(title, plan.total, run.counters, plan.profile.duration)
    gone = False
    with _interrupts(run) as interrupts, _no_collector(), during:
        for capture in run.captures():
            if capture is None:
                display.show(progress)
                if not gone and (gone := manner.gone()):
                    run.stop()  # nobody waits for answers that cannot come
                continue
            record = decoder.decode(capture)
            record.planned_input = int(input_lens[record.index])
            record.planned_output = int(output_lens[record.index])
            rows.append(record)
            progress.note(record)
    interrupted = interrupts.count > 0
    stopped = "stopped by Ctrl-C" if interrupted else "the server has ended" if gone else ""
    cut_short = run.died or stopped
    return Outcome(Records.of(rows), run.health or UNHEARD, cut_short, interrupted)


def _job(plan: Plan, manner: Manner) -> Job:
    profile = plan.profile
    return Job(
        target=manner.target,
        count=len(plan),
        body=plan.body,
        offsets_ns=plan.offsets_ns,
        max_concurrency=profile.max_concurrency,
        limits=Limits(
            request_timeout_ns=int(profile.request_timeout * 1e9),
            # A whole answer has no token to wait for: only --request-timeout ends it.
            stall_timeout_ns=int(profile.stall_timeout * 1e9) if profile.stream else 0,
            answer_bytes=_answer_bytes(plan),
        ),
        token_seen=plan.dialect.token_seen,
        request_id_prefix=manner.request_id_prefix,
        rate_per_s=profile.request_rate,
        duration_ns=profile.duration_ns,
        http2=manner.http2,
    )


def _answer_bytes(plan: Plan) -> int:
    """How many bytes one answer may have: no server needs as many for the tokens that it was asked for."""
    longest = int(plan.prompts.output_lens.max(initial=0))
    repeated = longest * longest * _BYTES_SO_FAR if isinstance(plan.dialect, Generate) else 0
    return _LEAST_BYTES + longest * _TOKEN_BYTES + repeated


def _allow_files(job: Job) -> None:
    """Raise the limit on open files to what the job may need; raises UsageError where it cannot be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else _SPARE_FILES
    need = job.most_slots + used + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    limit = need if hard == resource.RLIM_INFINITY else min(need, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit < job.first_slots + used + _SPARE_FILES:
        raise UsageError(
            f"{job.first_slots} connections need more open files than the limit of {hard}: "
            "lower --max-concurrency, or raise it (ulimit -Hn)"
        )
