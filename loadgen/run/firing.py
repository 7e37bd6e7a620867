"""Firing: a share of a plan as one process sends it, and another decodes and journals it."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.untrusted import Hide, hide_nothing
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import UNKNOWN_LEN
from loadgen.records.decode import Decoder
from loadgen.records.journal import Journal
from loadgen.records.record import Record, Records
from loadgen.records.text_tokens import TextTokenizer
from loadgen.run.command.progress import Display, LiveTotals, Progress, SentCounters
from loadgen.run.stop_rules import StopRules, read_begin
from loadgen.settings.run_settings import SendOptions
from loadgen.settings.shard_settings import WHOLE, Share
from loadgen.transport import memory_room
from loadgen.transport.capture import Health
from loadgen.transport.capture_process import TRANSPORTS, CaptureRun
from loadgen.transport.sending.job import (
    AtOnce,
    Job,
    Limits,
    Listed,
    MoreHeaders,
    Order,
    RunStart,
    Sessions,
    Target,
)

_SPARE_FILES, _FEWEST_FILES = 64, 16  # open files next to connections, for what a run opens besides
_LEAST_BYTES = 64 << 20  # that an answer may have
_TOKEN_BYTES = 16 << 10  # a token's message: twenty logprobs are 3 kB
_LARGEST = 8  # an answer may have this part of the memory for all: to be decoded it takes several times that
_UNLIMITED = 1 << 15  # tokens of an answer that no limit is asked for: more are as good as a loop
_BYTES_SO_FAR = 16  # a token, text and id, in the message of each later one: SGLang's /generate repeats all
NO_HEALTH = Health(0, 0, 0, 0, 0, 0)  # of a capturing process that died


class PlanPart(msgspec.Struct, frozen=True):
    """Which share of a plan a process sends, and when it starts."""

    share: Share = WHOLE
    order: Order | None = None  # None: the requests of the share, by plan index
    start: RunStart = AtOnce()


class TransportOptions(msgspec.Struct, frozen=True):
    """How requests are sent, independent of their content."""

    target: Target
    transport: str = "wire"
    why_transport: str = ""  # where it was not asked for
    why_workers: str = ""  # that number, where --workers auto chose it
    http2: bool = False
    request_id_prefix: str = "loadgen-"
    keep_text: bool = False
    sending: SendOptions = SendOptions()  # the settings of a run that a transport may know
    hide: Hide = hide_nothing  # what servers write, without the secrets they were sent
    gone: Callable[[], bool] = lambda: False  # whether the server has ended, where that is known
    server_pids: Callable[[], Sequence[int]] = tuple  # of the server's processes, where they are here
    part: PlanPart = PlanPart()
    workers: int = 1  # processes that send and decode, each with a capturing process of its own
    cpus: tuple[int, ...] = ()  # that several workers are pinned to; (): none
    cpu_words: str = ""  # the same in words
    targets: tuple[Target, ...] = ()  # all of several, of which each process has one; (): one
    more_headers: MoreHeaders = lambda index: ()  # of each measured request

    def choose_target(self, process: int) -> Target:
        """Return the target of process number `process` of those that send a plan: each in turn."""
        return self.targets[process % len(self.targets)] if self.targets else self.target

    def make_warm_up(self, warmups: int) -> TransportOptions:
        """Return these options for one process that sends its share of `warmups` requests at once."""
        of = min(self.part.share.of, warmups) or 1
        share = Share(self.part.share.number % of, of)
        return replace(self, part=PlanPart(share), workers=1, cpus=(), cpu_words="")


class Watch(msgspec.Struct, frozen=True):
    """The display, the journal and the stop rules that accompany the sending of a plan."""

    display: Display
    title: str
    during: AbstractContextManager[object] = msgspec.field(default_factory=nullcontext)
    journal: Journal = msgspec.field(default_factory=Journal)
    rules: StopRules = msgspec.field(default_factory=StopRules)
    interrupts: Interrupts = SIGNALS
    tokenizer: TextTokenizer | None = None  # that counts the tokens of answers without usage
    totals: LiveTotals | None = None  # where the run's totals are published
    waiting: Callable[[], int | None] = lambda: None  # requests in the server's queue, where it reports them
    reaps: bool = True  # False: the caller goes on while processes exit, and calls `reap_ended`


class Outcome(msgspec.Struct, frozen=True):
    """The records and counts of a plan that was sent; `cut_short` is why it was not completed, or ""."""

    records: Records
    health: Health
    cut_short: str = ""
    signal: int = 0  # which one asked the run to stop; 0: none did
    rule: str = ""  # which rule to stop ended it, in words
    saturated: bool = False  # that rule was --stop-when-saturated
    uncounted: str = ""  # why the tokens of answers without usage could not be counted
    reasoned: int = 0  # answers whose first token was of reasoning
    hidden: int = 0  # answers whose reasoning was counted, and not streamed
    workers: int = 1
    lost: tuple[str, ...] = ()  # workers that were lost, and why, in words

    @property
    def interrupted(self) -> bool:
        """Whether a signal or a cancellation stopped the run."""
        return self.signal > 0


class DecodedTally(msgspec.Struct, frozen=True):
    """Counts made while decoding, over all requests of a run."""

    uncounted: int = 0  # answers whose text was kept, for its tokens to be counted
    reasoned: int = 0
    hidden: int = 0


class Firing(Protocol):
    """A plan while it is sent and decoded, by one process or several."""

    workers: int

    @property
    def counters(self) -> SentCounters:
        """Counts of requests sent and ended, for the display."""

    @property
    def died(self) -> str:
        """Why sending ended early, by a fault of this client; "" if it did not."""

    @property
    def health(self) -> Health:
        """The capturing processes' report, once all is over."""

    @property
    def tally(self) -> DecodedTally:
        """The counts made while decoding so far."""

    @property
    def lost(self) -> tuple[str, ...]:
        """Which of several processes were lost, and why, in words."""

    def turns(self, progress: Progress) -> Iterator[None]:
        """Run until all is decoded and journalled, yielding a few times a second."""

    def stop(self) -> None:
        """End what is in flight; what has finished is still decoded."""

    def kill(self) -> None:
        """End every process at once."""


class OneProcess:
    """A share of a plan that one capturing process sends and this process decodes."""

    workers, lost = 1, ()

    def __init__(self, decoder: Decoder, run: CaptureRun, journal: Journal, rules: StopRules) -> None:
        self.decoder, self.run, self.journal, self.rules = decoder, run, journal, rules

    @property
    def counters(self) -> SentCounters:
        return self.run.counters

    @property
    def died(self) -> str:
        return self.run.died

    @property
    def health(self) -> Health:
        return self.run.health or NO_HEALTH

    @property
    def tally(self) -> DecodedTally:
        reasoning = self.decoder.reasoning
        return DecodedTally(self.decoder.uncounted, reasoning.shown, reasoning.hidden)

    def turns(self, progress: Progress) -> Iterator[None]:
        """Decode and journal all, as Firing.turns; each record is noted by the rules and the progress."""
        note_rule, note_progress, saturation = self.rules.note, progress.note, self.rules.saturation

        def note(record: Record) -> None:
            note_rule(record.failure)
            note_progress(record)
            if saturation is not None and (begun := read_begin(record)) is not None:
                saturation.note_several([begun])

        return self.decode_all(note)

    def decode_all(self, note: Callable[[Record], None], wake: int = -1) -> Iterator[None]:
        """Decode, journal and note each capture as it comes; finish the journal at the end.

        Yields a few times a second, at once if the file `wake` is readable, having written the journal.
        """
        journal, decode = self.journal, self.decoder.decode
        journal.start_syncing()
        for capture in self.run.captures() if wake < 0 else self.run.captures(wake):
            if capture is None:
                journal.write()
                yield
                continue
            record = decode(capture)
            journal.add(record)
            note(record)
        journal.finish()

    def stop(self) -> None:
        self.run.stop()

    def kill(self) -> None:
        self.run.kill()


def make_decoder(plan: Plan, options: TransportOptions, counts: bool) -> Decoder:
    """Make the decoder of a plan's answers; `counts`: it keeps texts that a tokenizer must count."""
    planned = (plan.requests.input_lens, plan.requests.output_lens)
    return Decoder(plan.dialect, plan.profile.stream, options.keep_text, options.hide, planned, counts)


def make_job(plan: Plan, options: TransportOptions, rules: StopRules) -> Job:
    """Make one process's job of its share of a plan; raises UsageError if a header would be sent twice."""
    profile, part = plan.profile, options.part
    indices = part.share.list_indices(len(plan), plan.sessions)
    sessions: Sessions | None = None
    order: Order = part.order or Listed(indices)
    if plan.turns is not None:
        indices = np.unique(plan.turns.list_sessions()[indices])
        from loadgen.features.sessions import turn_sending  # few runs have sessions

        order, sessions = turn_sending.make_turns(plan, plan.turns, indices.tolist(), options.target.headers)
    if options.http2 and plan.cancellations is not None:
        raise UsageError("cancelled requests close connections, and --http2 shares one: leave out --http2")
    answer_bytes, open_bytes = _limit_bytes(plan, options, len(order), sessions)
    timeouts_s = profile.turn_timeout, profile.request_timeout
    most, steps = profile.max_concurrency, plan.concurrency
    if steps is not None:
        most, steps = steps.most, steps.divide(part.share.number, part.share.of)
    return Job(
        target=options.choose_target(part.share.number),
        order=order,
        body=plan.body,
        offsets_ns=None if plan.offsets_ns is None else plan.offsets_ns[indices],
        max_concurrency=part.share.divide_limit(most),
        limits=Limits(
            request_timeout_ns=int(min(filter(None, timeouts_s), default=0.0) * 1e9),  # 0: any time
            timeout_flag="--turn-timeout" if profile.turn_timeout else "--request-timeout",
            # A whole answer has no token to wait for: only --request-timeout ends it.
            stall_timeout_ns=int(profile.stall_timeout * 1e9) if profile.stream else 0,
            answer_bytes=answer_bytes,
            open_bytes=open_bytes,
        ),
        token_seen=plan.dialect.has_token,
        token_messages=plan.dialect.count_token_messages,
        request_id_prefix=options.request_id_prefix,
        rate_per_s=plan.rate_per_s / part.share.of,
        duration_ns=rules.duration_ns(profile.duration_ns),
        http2=options.http2,
        profile=profile,
        sending=options.sending,
        share=part.share,
        start=part.start,
        concurrency_steps=steps,
        prefill_concurrency=part.share.divide_limit(profile.prefill_concurrency),
        max_requests=part.share.divide_limit(profile.max_requests),
        cancellations=plan.cancellations,
        sessions=sessions,
        more_headers=options.more_headers,
    )


def _limit_bytes(
    plan: Plan, options: TransportOptions, requests: int, sessions: Sessions | None
) -> tuple[int, int]:
    """Compute how many bytes one answer may have, and all answers in flight in one process together.

    The first is more than any server needs for the longest answer planned, but an eighth of the second at
    most, and 1 MiB at least.
    """
    lens = plan.requests.output_lens
    longest = int(lens.max(initial=_UNLIMITED if (lens == UNKNOWN_LEN).any() else 0))
    repeated = longest * longest * _BYTES_SO_FAR if plan.dialect.cumulative else 0
    most = options.part.share.divide_limit(plan.profile.max_concurrency)
    streams = requests if most is None else min(most, requests)
    streams = streams if sessions is None else sessions.count_slots(streams)
    together = memory_room.limit_open_bytes(streams, longest + repeated // _TOKEN_BYTES, options.workers)
    one = _LEAST_BYTES + longest * _TOKEN_BYTES + repeated
    return min(one, max(together // _LARGEST, memory_room.MIB)), together


def allow_files(job: Job, transport: str) -> None:
    """Raise the open-file limit to what the job may need, or the most that is allowed.

    Raises UsageError if that is too few for the connections of the first wave, sub-agents' among them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else _SPARE_FILES
    held = TRANSPORTS[transport].count_held_files(job.most_slots)
    need = job.most_slots + used + _SPARE_FILES + held
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    limit = need if hard == resource.RLIM_INFINITY else min(need, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    least = job.least_slots + used + _FEWEST_FILES
    if limit < least:
        aside = job.least_slots - job.first_slots
        agents = f", {aside} of them of sub-agents at work together," if aside else ""
        lower = "lower --max-concurrency, or " if job.least_slots > least // 2 else ""
        raise UsageError(
            f"{job.least_slots} connections{agents} need {least} open files with those of the run, and the "
            f"limit is {hard}: {lower}raise it (ulimit -Hn)"
        )
