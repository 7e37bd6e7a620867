"""Measure: a plan is fired, decoded and journalled; a signal or a rule ends it early with what there is."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import msgspec

from loadgen import clock
from loadgen.errors import UsageError
from loadgen.metrics import text_tokens
from loadgen.metrics.decode import Decoder
from loadgen.metrics.record import Records
from loadgen.metrics.text_tokens import TextTokenizer
from loadgen.protocol.sglang import Generate
from loadgen.protocol.untrusted import Hide, as_is
from loadgen.results.journal import Journal
from loadgen.session import signals
from loadgen.session.progress import Display, Progress
from loadgen.session.signals import SIGNALS, Interrupts
from loadgen.session.stop_rules import StopRules
from loadgen.transport.capture_process import CaptureRun, start
from loadgen.transport.job import Health, Job, Limits, Target
from loadgen.transport.share import WHOLE, Listed, Order, Share
from loadgen.transport.start import AtOnce, RunStart
from loadgen.workload.plan import Plan
from loadgen.workload.requests import UNKNOWN_LEN

_SPARE_FILES, _HELD_FILES = 64, 512
_LEAST_BYTES = 64 << 20  # that an answer may have
_TOKEN_BYTES = 16 << 10  # a token's message: twenty logprobs are 3 kB
_UNLIMITED = 1 << 15  # tokens of an answer that no limit is asked for: more are as good as a loop
_BYTES_SO_FAR = 16  # a token, text and id, in the message of each later one: SGLang's /generate repeats all
_NO_HEALTH = Health(0, 0, 0, 0, 0, 0)  # of a capturing process that died


class PlanPart(msgspec.Struct, frozen=True):
    """Which part of a plan a process sends, and from when."""

    share: Share = WHOLE
    order: Order | None = None  # None: the requests of the share, by plan index
    start: RunStart = AtOnce()


class TransportOptions(msgspec.Struct, frozen=True):
    """How requests are sent, whatever is in them."""

    target: Target
    transport: str = "wire"
    why_transport: str = ""  # where it was not asked for
    http2: bool = False
    request_id_prefix: str = "loadgen-"
    keep_text: bool = False
    hide: Hide = as_is  # what servers write, without the secrets they were sent
    gone: Callable[[], bool] = lambda: False  # whether the server has ended, where that is known
    part: PlanPart = PlanPart()


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a plan; `cut_short` is why it was not carried to its end, "" where it was."""

    records: Records
    health: Health
    cut_short: str = ""
    signal: int = 0  # which one asked the run to stop; 0: none did
    rule: str = ""  # which rule to stop ended it, in words
    uncounted: str = ""  # why the tokens of answers without usage could not be counted
    reasoned: int = 0  # answers whose first token was of reasoning
    hidden: int = 0  # answers whose reasoning was counted, and not streamed

    @property
    def interrupted(self) -> bool:
        """Whether a signal or a cancellation stopped the run."""
        return self.signal > 0


class Watch(msgspec.Struct, frozen=True):
    """What accompanies a run: its display, its journal, its rules to stop."""

    display: Display
    title: str
    during: AbstractContextManager[object] = msgspec.field(default_factory=nullcontext)
    journal: Journal = msgspec.field(default_factory=Journal)
    rules: StopRules = msgspec.field(default_factory=StopRules)
    interrupts: Interrupts = SIGNALS
    tokenizer: TextTokenizer | None = None  # that counts the tokens of answers without usage


@dataclass
class _Ending:
    """Why a run is to end before its plan; the second signal ends the command."""

    run: CaptureRun
    signal: int = 0
    gone: bool = False
    stopped_by: str = ""  # the rule, in words

    def by_signal(self, number: int) -> None:
        if self.signal:
            self.run.kill()
            signals.stop(number)
        self.signal = number
        self.run.stop()

    def check(self, gone: Callable[[], bool], rules: StopRules, elapsed_s: float) -> None:
        """Ask the run to stop, once, where the server has ended or a rule requires it."""
        if self.gone or rules.fired:
            return
        counters = self.run.counters
        self.gone = gone()
        self.stopped_by = rules.reason(elapsed_s, max(counters.sent - counters.ended, 0))
        if self.gone or self.stopped_by:
            self.run.stop()

    @property
    def why(self) -> str:
        """Why it is about to end; "" while it goes on."""
        if self.signal:
            return f"{signals.reason(self.signal)}; what is under way is cut (again: at once)"
        return "the server has ended" if self.gone else self.stopped_by

    @property
    def cut_short(self) -> str:
        """Why the plan was not carried to its end, no rule having ended it; "" where it was."""
        if self.run.died:
            return self.run.died
        if self.signal:
            return signals.reason(self.signal)
        return "the server has ended" if self.gone else ""


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disable the garbage collector: decoding allocates many objects but no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()  # what start-up made stays: looking at it would copy the pages shared with the fork
    try:
        yield
    finally:
        if was_on:
            gc.unfreeze()
            gc.enable()


def measure(plan: Plan, options: TransportOptions, watch: Watch) -> Outcome:
    """Fire a plan and decode what comes back; raises UsageError when it needs too much.

    `watch.during` is entered once the capturing process has been forked: what it starts may be a thread.
    On return every decoded request is in the journal's file, and that is on the disk.
    """
    rules, journal = watch.rules, watch.journal
    job = _job(plan, options, rules)
    _allow_files(job, options.transport)
    planned = (plan.requests.input_lens, plan.requests.output_lens)
    counts = watch.tokenizer is not None
    decoder = Decoder(plan.dialect, plan.profile.stream, options.keep_text, options.hide, planned, counts)
    run = start(job, options.transport)
    duration_s = job.duration_ns / 1e9 or None
    progress = Progress(
        watch.title,
        plan.total,
        run.counters,
        duration_s,
        rules.cut_after_s,
        max_concurrency=plan.profile.max_concurrency,
        schedule_s=None if plan.facts.schedule is None else plan.facts.schedule.span_s,
    )
    began_ns, ending = clock.now_ns(), _Ending(run)
    try:
        with watch.interrupts.caught(ending.by_signal), _no_collector(), watch.during:
            journal.start_syncing()
            for capture in run.captures():
                if capture is None:
                    journal.write()
                    progress.ending = ending.why
                    watch.display.show(progress)
                    watch.interrupts.poll()
                    ending.check(options.gone, rules, (clock.now_ns() - began_ns) / 1e9)
                    continue
                record = decoder.decode(capture)
                journal.add(record)
                rules.note(record.failure)
                progress.note(record)
            journal.finish()
    finally:
        run.kill()
    spill = journal.path.parent if journal.path is not None else None
    elapsed_s, sent = (clock.now_ns() - began_ns) / 1e9, run.counters.sent
    rule = "" if ending.cut_short else rules.summary(elapsed_s, (plan.total or sent) - sent)
    health = run.health or _NO_HEALTH
    revise, uncounted = _revision(watch, decoder)
    return Outcome(
        journal.records(spill, revise),
        health,
        cut_short=ending.cut_short,
        signal=ending.signal,
        rule=rule,
        uncounted=uncounted,
        reasoned=decoder.reasoning.shown,
        hidden=decoder.reasoning.hidden,
    )


def _revision(watch: Watch, decoder: Decoder) -> tuple[Callable[[Records], Records], str]:
    """What counts the answers without usage in each part of the journal, and why it cannot."""
    if not decoder.uncounted:
        return text_tokens.revision((), None, decoder.keep_text)
    with watch.display.waiting(f"counting the tokens of {decoder.uncounted} responses without usage"):
        return text_tokens.revision(watch.journal.parts(), watch.tokenizer, decoder.keep_text)


def _job(plan: Plan, options: TransportOptions, rules: StopRules) -> Job:
    profile, part = plan.profile, options.part
    indices = part.share.indices(len(plan))
    most = profile.max_concurrency
    return Job(
        target=options.target,
        order=part.order or Listed(indices),
        body=plan.body,
        offsets_ns=None if plan.offsets_ns is None else plan.offsets_ns[indices],
        max_concurrency=None if most is None else part.share.slots(most),
        limits=Limits(
            request_timeout_ns=int(profile.request_timeout * 1e9),
            # A whole answer has no token to wait for: only --request-timeout ends it.
            stall_timeout_ns=int(profile.stall_timeout * 1e9) if profile.stream else 0,
            answer_bytes=_answer_bytes(plan),
        ),
        token_seen=plan.dialect.token_seen,
        request_id_prefix=options.request_id_prefix,
        rate_per_s=plan.rate_per_s / part.share.of,
        duration_ns=rules.duration_ns(profile.duration_ns),
        http2=options.http2,
        share=part.share,
        start=part.start,
    )


def _answer_bytes(plan: Plan) -> int:
    """How many bytes one answer may have: no server needs as many for the tokens that it was asked for."""
    lens = plan.requests.output_lens
    longest = int(lens.max(initial=_UNLIMITED if (lens == UNKNOWN_LEN).any() else 0))
    repeated = longest * longest * _BYTES_SO_FAR if isinstance(plan.dialect, Generate) else 0
    return _LEAST_BYTES + longest * _TOKEN_BYTES + repeated


def _allow_files(job: Job, transport: str) -> None:
    """Raise the limit on open files to what the job may need; raises UsageError where it cannot be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else _SPARE_FILES
    # A ring holds the ports of connections that ended for a while.
    held = job.most_slots // 2 + _HELD_FILES if transport == "ring" else 0
    need = job.most_slots + used + _SPARE_FILES + held
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    limit = need if hard == resource.RLIM_INFINITY else min(need, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit < job.first_slots + used + _SPARE_FILES:
        raise UsageError(
            f"{job.first_slots} connections need more open files than the limit of {hard}: "
            "lower --max-concurrency, or raise it (ulimit -Hn)"
        )
