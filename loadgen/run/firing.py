"""Firing: a plan that is sent and decoded, by one process or several, and why it ends before its plan."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from loadgen.figures.decode import Decoder
from loadgen.figures.record import Record
from loadgen.report.journal import Journal
from loadgen.run import signals
from loadgen.run.progress import Progress, SentCounters
from loadgen.run.stop_rules import StopRules
from loadgen.transport.capture_process import CaptureRun
from loadgen.transport.sending.job import Health

NO_HEALTH = Health(0, 0, 0, 0, 0, 0)  # of a capturing process that died


class DecodedTally(msgspec.Struct, frozen=True):
    """What decoding has found over all requests of a run."""

    uncounted: int = 0  # answers whose text was kept, for its tokens to be counted
    reasoned: int = 0
    hidden: int = 0


class Firing(Protocol):
    """A plan that is sent and decoded, in one process or several."""

    workers: int

    @property
    def counters(self) -> SentCounters:
        """How many requests were sent and have ended."""
        ...

    @property
    def died(self) -> str:
        """Why it ended before its plan, by a fault of this client; "" where it did not."""
        ...

    @property
    def health(self) -> Health:
        """What the capturing processes report, once all is over."""
        ...

    @property
    def tally(self) -> DecodedTally:
        """What decoding has found so far."""
        ...

    @property
    def lost(self) -> tuple[str, ...]:
        """What was lost of several processes, in words."""
        ...

    def turns(self, progress: Progress) -> Iterator[None]:
        """Go on until all is decoded and journalled; gives back control a few times a second."""
        ...

    def stop(self) -> None:
        """End what is under way; what has finished is still decoded."""
        ...

    def kill(self) -> None:
        """End every process at once."""
        ...


class OneProcess:
    """A part of a plan that one capturing process sends and this process decodes."""

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
        note_rule, note_progress, saturation = self.rules.note, progress.note, self.rules.saturation

        def note(record: Record) -> None:
            note_rule(record.failure)
            note_progress(record)
            if saturation is not None:
                saturation.note(record)

        return self.decoded(note)

    def decoded(self, note: Callable[[Record], None], wake: int = -1) -> Iterator[None]:
        """Decode and journal all that comes, and have each noted; a turn ends where `wake` can be read."""
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


@dataclass
class Ending:
    """Why a run is to end before its plan; the second signal ends the command."""

    run: Firing
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
def no_collector() -> Iterator[None]:
    """Disable the garbage collector: decoding allocates many objects but no cycles.

    Nothing is frozen: `gc.unfreeze` would also thaw what the program that calls this had frozen.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
