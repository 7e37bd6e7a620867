"""Shard sender: a command that sends one share of a plan: its checks, its start, and the facts it stores.

Shard 0 alone does what concerns the server as a whole: it empties the cache, samples the server's counters
and its machine, and asks for the fingerprint. The warm-up is divided as the plan is, and each shard sends at
least one request of it: so each learns what the server refuses, and all send the same plan.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

from loadgen import __version__
from loadgen.base import clock
from loadgen.base.clock import SECOND_NS, SYSTEM_CLOCK, Clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts, ShardFacts
from loadgen.features.shards.shard_clocks import read_clock
from loadgen.plan.plan import Plan
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.measurement import PlanSender
from loadgen.settings.shard_settings import START_AT, Share
from loadgen.transport.sending.job import At

_LEAST_LEAD_S, _MOST_LEAD_S = 1.0, 30.0
_CONNECTED_PER_S = 2_000  # on a machine that has other work
_POLL_S = 0.1


def check_options(options: Options) -> None:
    """Raise UsageError for a start that has passed, a shard without seed or URL, or one with `+SECONDS`."""
    start = options.start_at
    if start is not None:
        start.check(clock.SYSTEM_CLOCK.wall_ns())
    if options.shard is None:
        return
    if options.seed is None:
        raise UsageError("--shard needs --seed, the same in every shard: all shards send parts of one plan")
    if options.base_url is None:
        raise UsageError("--shard is a part of the load on a running server: pass its --base-url")
    if start is not None and start.relative:
        raise UsageError(
            "--start-at +SECONDS counts from when each command began: give all shards one instant, as "
            "--start-at $(date -d '+30 seconds' +%s) worked out once"
        )


class ShardSender(PlanSender):
    """Sends this command's share of a plan from this machine, from an instant on if one is given.

    The wall clock may be set while that is waited for: what it shows in the end counts.
    """

    def __init__(
        self,
        options: Options,
        interrupts: Interrupts,
        clocks: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options, self.interrupts = options, interrupts
        self.clocks, self.sleep = clocks, sleep

    def describe(self, known: Facts, made: Plan) -> Facts:
        """Return the facts with the share and a reading of the clock; as they are without --shard."""
        share, start = self.options.shard, self.options.start_at
        if share is None:
            return known
        shard = ShardFacts(
            number=share.number,
            of=share.of,
            version=__version__,
            start_at_ns=0 if start is None else start.wall_ns,
            requests=None if made.total is None else len(share.list_indices(len(made), made.sessions)),
            sessions=made.sessions is not None,
            before=read_clock(),
        )
        return replace(known, shard=shard)

    def wait(self, made: Plan, rest_s: float, display: Display) -> None:
        """Wait until `rest_s` before connections must be opened; not if it is over, or without --start-at."""
        start = self.options.start_at
        if start is None:
            return
        ahead_ns = int((rest_s + compute_lead_s(made.streams // self.options.share.of)) * SECOND_NS)
        left_s = (start.instant_ns(self.clocks) - self.clocks.now_ns()) / SECOND_NS
        with display.waiting(f"waiting for the start at {start}", left_s):
            while (left_ns := start.instant_ns(self.clocks) - ahead_ns - self.clocks.now_ns()) > 0:
                self.interrupts.poll()
                self.sleep(min(left_ns / SECOND_NS, _POLL_S))

    def begin(self, made: Plan, options: TransportOptions, display: Display) -> TransportOptions:
        """Wait until the start is near enough to open connections; return the options with it.

        Raises MeasureError where the instant has passed; so does `gone` of what is returned, where the
        capturing process was not ready in time.
        """
        if self.options.start_at is None:
            return options
        self.wait(made, 0.0, display)
        instant_ns = self.options.start_at.instant_ns(self.clocks)
        advice = "nothing was measured; give a later instant, the same to all shards"
        named = f"{START_AT} {self.options.start_at}: {advice}"
        _check_late(self.clocks.now_ns() - instant_ns, named)
        return start_punctually(options, instant_ns, named)

    def send(self, made: Plan, options: TransportOptions, watch: Watch) -> Outcome:
        return super().send(made, self.begin(made, options, watch.display), watch)

    def list_steps(self) -> tuple[tuple[str, Callable[[Facts], Facts]], ...]:
        if self.options.shard is None:
            return ()

        def read_clock_again(known: Facts) -> Facts:
            assert known.shard is not None
            return replace(known, shard=replace(known.shard, after=read_clock()))

        return (("the clock", read_clock_again),)


class Punctual(At):
    """A start at an instant, only for processes ready by then; else never, with `late_ns` how late.

    Make it before the fork, in the process that is to read `late_ns`: it sends nothing itself, and is not
    judged. Of several processes the latest counts.
    """

    def __init__(self, instant_ns: int) -> None:
        super().__init__(instant_ns)
        self._late = memoryview(mmap.mmap(-1, 8)).cast("q")
        self._maker, self._ready = os.getpid(), False

    @property
    def late_ns(self) -> int:
        """How long after the instant a process was ready (ns); 0: in time, or not yet ready."""
        return int(self._late[0])

    def begin_ns(self, now_ns: int) -> int:
        """Return the instant, or 0 if a process was not ready by then, which the first call in it decides."""
        if not self._ready and os.getpid() != self._maker:
            self._ready = True
            if now_ns > self.instant_ns:
                self._late[0] = max(self._late[0], now_ns - self.instant_ns)
        return 0 if self._late[0] else self.instant_ns


def compute_lead_s(connections: int) -> float:
    """Return how many seconds before the start connections begin to be opened: 1 to 30, by their number."""
    return min(_LEAST_LEAD_S + connections / _CONNECTED_PER_S, _MOST_LEAD_S)


def start_punctually(options: TransportOptions, instant_ns: int, named: str) -> TransportOptions:
    """Return the options with a start at an instant, which messages name.

    Their `gone` raises MeasureError where a process was not ready by then.
    """
    start, gone = Punctual(instant_ns), options.gone

    def late_or_gone() -> bool:
        _check_late(start.late_ns, named)
        return gone()

    return replace(options, part=replace(options.part, start=start), gone=late_or_gone)


def _check_late(late_ns: int, named: str) -> None:
    if late_ns > 0:
        raise MeasureError(f"not ready until {late_ns / SECOND_NS:.2g} s after {named}")


def check_divisible(made: Plan, share: Share) -> None:
    """Raise UsageError if there are more shards than concurrent requests to divide among them."""
    if made.divisible is None:
        return
    flag, most = made.divisible
    if share.of > most:
        raise UsageError(
            f"{share.of} shards of {flag} {most}: some would have no slot; "
            f"start {most} shards or fewer, or raise {flag}"
        )


def check_digest(made: Plan, expected: str | None) -> None:
    """Raise MeasureError if the plan's digest is not the one given by --expect-digest."""
    if expected is not None and (digest := made.digest()) != expected:
        adapted = made.adaptation.fields
        fields = f" (the server refused {', '.join(field.name for field in adapted)} here)" if adapted else ""
        raise MeasureError(
            f"the plan is {digest}, not {expected} of --expect-plan{fields}: give every shard the same "
            "version of loadgen, profile, flags, --seed and data files"
        )
