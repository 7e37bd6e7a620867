"""Measurement: a plan is sent by its processes and shown meanwhile; a signal or a rule ends it early."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from loadgen.base import clock, signals
from loadgen.facts.run_facts import Facts
from loadgen.features.workers.workers import Workers
from loadgen.plan.plan import Plan
from loadgen.records import text_tokens
from loadgen.run.command.progress import Display, Progress
from loadgen.run.firing import (
    Firing,
    OneProcess,
    Outcome,
    TransportOptions,
    Watch,
    allow_files,
    make_decoder,
    make_job,
)
from loadgen.run.stop_rules import StopRules
from loadgen.transport.capture_process import reap_ended, start_capture
from loadgen.transport.sending.job import AtOnce


class HeldStart:
    """A start that a process waits for until the one that forked it calls `release`; make it before the fork.

    Until then that one starts its samplers, whose first work would take the CPUs from the first requests.
    """

    def __init__(self) -> None:
        self._view = mmap.mmap(-1, 1)

    def release(self) -> None:
        """Let the process start at once."""
        self._view[0] = 1

    def begin_ns(self, now_ns: int) -> int:
        """Return the time now once it is released, 0 until then."""
        return now_ns if self._view[0] else 0


def measure(plan: Plan, options: TransportOptions, watch: Watch, firing: Firing | None = None) -> Outcome:
    """Send a plan, decode the responses, return the outcome; raises UsageError for too many connections.

    `firing` sends it, if not processes of this machine. `watch.during` is entered once every process has been
    forked, as what it starts may be a thread, and before one of them sends. Meanwhile it shows and publishes
    the progress, applies the rules and handles signals. On return every decoded request is in the journal's
    file, on the disk.
    """
    rules, journal, part = watch.rules, watch.journal, options.part
    indices = None if plan.total is None else part.share.list_indices(len(plan), plan.sessions)
    total, planned_tokens = None, 0
    if indices is not None:
        total, lens = len(indices), plan.requests.output_lens[indices]
        planned_tokens = int(lens.sum()) if (lens > 0).all() else 0
    held = HeldStart() if firing is None and isinstance(part.start, AtOnce) and options.workers == 1 else None
    if held is not None:
        options = replace(options, part=replace(part, start=held))
    if firing is None and options.workers > 1:
        firing = Workers(plan, options, watch)
    if firing is None:
        job = make_job(plan, options, rules)
        allow_files(job, options.transport)
        decoder = make_decoder(plan, options, watch.tokenizer is not None)
        firing = OneProcess(decoder, start_capture(job, options.transport), journal, rules)
    progress = Progress(
        watch.title,
        total,
        firing.counters,
        rules.duration_ns(plan.profile.duration_ns) / 1e9 or None,
        rules.cut_after_s,
        max_concurrency=part.share.divide_limit(plan.profile.max_concurrency),
        schedule_s=plan.sending_s,
        planned_tokens=planned_tokens,
        waiting=watch.waiting,
    )
    ending = Ending(firing)
    try:
        with watch.interrupts.catch(ending.stop_by_signal), pause_collector(), watch.during:
            began_ns = part.start.begin_ns(clock.now_ns())
            if held is not None:
                held.release()
            for _ in firing.turns(progress):
                progress.ending = ending.why
                watch.display.show(progress)
                if watch.totals is not None:
                    watch.totals.publish(progress.totals)
                watch.interrupts.poll()
                ending.check(options.gone, rules, (clock.now_ns() - began_ns) / 1e9)
    finally:
        firing.kill()
        if watch.reaps:
            reap_ended()
    if watch.totals is not None:
        watch.totals.publish(progress.totals)
    spill = journal.path.parent if journal.path is not None else None
    elapsed_s, sent = (clock.now_ns() - began_ns) / 1e9, firing.counters.sent
    planned_ns = plan.profile.duration_ns if total is None else 0
    rule = "" if ending.cut_short else rules.summarize(elapsed_s, (total or sent) - sent, planned_ns)
    # A worker that was killed has kept texts and no tally of them: they are dropped all the same.
    tally, (revise, uncounted) = firing.tally, text_tokens.make_revision((), None, options.keep_text)
    if tally.uncounted:
        with watch.display.waiting(f"counting the tokens of {tally.uncounted} responses without usage"):
            parts = journal.parts()
            revise, uncounted = text_tokens.make_revision(parts, watch.tokenizer, options.keep_text)
    return Outcome(
        journal.records(spill, revise),
        firing.health,
        cut_short=ending.cut_short,
        signal=ending.signal,
        rule=rule,
        saturated=rules.saturated,
        uncounted=uncounted,
        reasoned=tally.reasoned,
        hidden=tally.hidden,
        workers=firing.workers,
        lost=firing.lost,
    )


class PlanSender:
    """A sender of plans; subclasses do more than `measure`, which is all that this one does."""

    def describe(self, known: Facts, made: Plan) -> Facts:
        """Return the facts with what is known of the sender before the first request."""
        return known

    def wait(self, made: Plan, rest_s: float, display: Display) -> None:
        """Wait until only `rest_s` seconds are left before connections must be opened."""

    def send(self, made: Plan, options: TransportOptions, watch: Watch) -> Outcome:
        """Send the plan and return its outcome."""
        return measure(made, options, watch)

    def list_steps(self) -> tuple[tuple[str, Callable[[Facts], Facts]], ...]:
        """List (name, step) that add to the facts what is learned about the sender after the last request."""
        return ()


@contextmanager
def pause_collector() -> Iterator[None]:
    """Disable the garbage collector inside the block: decoding allocates many objects but no cycles.

    Nothing is frozen: `gc.unfreeze` would also thaw what the program that calls this had frozen.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Ending(msgspec.Struct):
    """Ends a run early on a signal, the server's end or a rule; a second signal ends the command."""

    run: Firing
    signal: int = 0
    gone: bool = False
    stopped_by: str = ""  # the rule, in words

    def stop_by_signal(self, number: int) -> None:
        """Stop the run; at a second signal kill it and end the command by that signal."""
        if self.signal:
            self.run.kill()
            signals.stop(number)
        self.signal = number
        self.run.stop()

    def check(self, gone: Callable[[], bool], rules: StopRules, elapsed_s: float) -> None:
        """Stop the run, once, if the server has ended or a rule ends it, and keep which."""
        if self.gone or rules.fired:
            return
        self.gone = gone()
        self.stopped_by = rules.reason(elapsed_s, self.run.counters)
        if self.gone or self.stopped_by:
            self.run.stop()

    @property
    def why(self) -> str:
        """Why the run is about to end: a signal, the server's end or a rule; "" while it goes on."""
        if self.signal:
            return f"{signals.explain_stop(self.signal)}; what is under way is cut (again: at once)"
        return "the server has ended" if self.gone else self.stopped_by

    @property
    def cut_short(self) -> str:
        """Why the plan was cut short: this client's fault, a signal or the server's end; "" if it was not."""
        if self.run.died:
            return self.run.died
        if self.signal:
            return signals.explain_stop(self.signal)
        return "the server has ended" if self.gone else ""
