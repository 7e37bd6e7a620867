"""Measure: a plan is sent, decoded and journalled; a signal or a rule ends it early with what there is."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from loadgen.base import clock, signals
from loadgen.base.arrays import Int64
from loadgen.features import import_rows
from loadgen.plan.plan import Plan
from loadgen.records import text_tokens
from loadgen.records.record import Records
from loadgen.run.command.progress import Progress
from loadgen.run.firing import Firing, TransportOptions, Watch, begin_process
from loadgen.run.stop_rules import StopRules
from loadgen.transport.sending.job import Health


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


def measure(plan: Plan, options: TransportOptions, watch: Watch, firing: Firing | None = None) -> Outcome:
    """Send a plan, decode the responses, return the outcome; raises UsageError for too many connections.

    `firing` is by whom it is sent, if not by processes of this machine. `watch.during` is entered once every
    process has been forked: what it starts may be a thread. On return every decoded request is in the
    journal's file, and that is on the disk.
    """
    rules, journal, part = watch.rules, watch.journal, options.part
    indices = None if plan.total is None else part.share.list_indices(len(plan), plan.sessions)
    total = None if indices is None else len(indices)
    most = plan.profile.max_concurrency
    firing = firing or _begin_firing(plan, options, watch)
    began_ns = part.start.begin_ns(clock.now_ns())
    progress = Progress(
        watch.title,
        total,
        firing.counters,
        rules.duration_ns(plan.profile.duration_ns) / 1e9 or None,
        rules.cut_after_s,
        max_concurrency=None if most is None else part.share.count_slots(most),
        schedule_s=plan.sending_s,
        planned_tokens=0 if indices is None else _planned_tokens(plan, indices),
        waiting=watch.waiting,
    )
    ending = Ending(firing)
    try:
        with watch.interrupts.catch(ending.by_signal), pause_collector(), watch.during:
            for _ in firing.turns(progress):
                progress.ending = ending.why
                watch.display.show(progress)
                if watch.totals is not None:
                    watch.totals.publish(progress.totals)
                watch.interrupts.poll()
                ending.check(options.gone, rules, (clock.now_ns() - began_ns) / 1e9)
    finally:
        firing.kill()
    if watch.totals is not None:
        watch.totals.publish(progress.totals)
    spill = journal.path.parent if journal.path is not None else None
    elapsed_s, sent = (clock.now_ns() - began_ns) / 1e9, firing.counters.sent
    planned_ns = plan.profile.duration_ns if total is None else 0
    rule = "" if ending.cut_short else rules.summary(elapsed_s, (total or sent) - sent, planned_ns)
    revise, uncounted = _revision(watch, firing.tally.uncounted, options.keep_text)
    return Outcome(
        journal.records(spill, revise),
        firing.health,
        cut_short=ending.cut_short,
        signal=ending.signal,
        rule=rule,
        saturated=rules.saturated,
        uncounted=uncounted,
        reasoned=firing.tally.reasoned,
        hidden=firing.tally.hidden,
        workers=firing.workers,
        lost=firing.lost,
    )


def _planned_tokens(plan: Plan, indices: Int64) -> int:
    """Sum the planned answers' lengths in tokens; 0 if one is unknown."""
    lens = plan.requests.output_lens[indices]
    return int(lens.sum()) if (lens > 0).all() else 0


def _begin_firing(plan: Plan, options: TransportOptions, watch: Watch) -> Firing:
    """Start sending a plan, in one process or in as many workers as the options say."""
    if options.workers > 1:
        (feature,) = import_rows("processes")  # few runs have several
        several: Firing = feature.Workers(plan, options, watch)
        return several
    return begin_process(plan, options, watch)


def _revision(watch: Watch, uncounted: int, keep_text: bool) -> tuple[Callable[[Records], Records], str]:
    """Return the function that adds tokenizer counts to part of a journal, and "" or why it cannot."""
    if not uncounted:
        return text_tokens.make_revision((), None, keep_text)
    with watch.display.waiting(f"counting the tokens of {uncounted} responses without usage"):
        return text_tokens.make_revision(watch.journal.parts(), watch.tokenizer, keep_text)


class Ending(msgspec.Struct):
    """Decides whether a run ends before its plan, and why; a second signal ends the command."""

    run: Firing
    signal: int = 0
    gone: bool = False
    stopped_by: str = ""  # the rule, in words

    def by_signal(self, number: int) -> None:
        """Stop the run; at a second signal kill it and end the command by that signal."""
        if self.signal:
            self.run.kill()
            signals.stop(number)
        self.signal = number
        self.run.stop()

    def check(self, gone: Callable[[], bool], rules: StopRules, elapsed_s: float) -> None:
        """Stop the run, once, if the server has ended or a rule says so."""
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
            return f"{signals.explain_stop(self.signal)}; what is under way is cut (again: at once)"
        return "the server has ended" if self.gone else self.stopped_by

    @property
    def cut_short(self) -> str:
        """Why the plan was not completed, other than by a rule; "" if it was."""
        if self.run.died:
            return self.run.died
        if self.signal:
            return signals.explain_stop(self.signal)
        return "the server has ended" if self.gone else ""


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
