"""Part: what a command that sends a part of a plan checks, does and stores otherwise than one that sends all.

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
from loadgen.base.structs import replace
from loadgen.features.shards.shard_settings import START_AT, PlannedStart
from loadgen.plan.plan import Plan
from loadgen.run.measure import PlanPart, TransportOptions
from loadgen.run.options import TABLE, Options, is_given
from loadgen.run.progress import Display
from loadgen.run.signals import Interrupts
from loadgen.settings.run_settings import AUTO
from loadgen.transport.sending.share import At, Share
from loadgen.verdict.run_facts import Facts, ShardFacts

_ONE_RUN = "{} is of one run: leave out --repeat, and name one profile"
_LEAST_LEAD_S, _MOST_LEAD_S = 1.0, 30.0
_CONNECTED_PER_S = 2_000  # on a machine that has other work
_POLL_S = 0.1


def check(options: Options) -> None:
    """Raises UsageError of options that a plan sent by several commands, or by a cluster, cannot have."""
    _check_shard(options)
    _check_cluster(options)


def _check_shard(options: Options) -> None:
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


def _check_cluster(options: Options) -> None:
    if options.cluster is None:
        if options.shards is not None:
            raise UsageError(
                "--shards is of a Ray cluster: pass --cluster auto too (without one: docs/shards.md)"
            )
        return
    if options.shards is None:
        raise UsageError("--cluster needs --shards N: how many processes are to share the load")
    refused = {row.option: row.cluster for row in TABLE if row.cluster and is_given(options, row)}
    if options.workers == AUTO:
        refused["--workers auto"] = "give --shards, or a number"
    for flag, why in refused.items():
        raise UsageError(f"{flag} does not go with --cluster: {why}")


def check_once(options: Options, runs: int) -> None:
    """Raises UsageError where several runs are to begin at one instant, or to send one plan."""
    for flag, given in (("--start-at", options.start_at), ("--expect-plan", options.expect_plan)):
        if given is not None and runs > 1:
            raise UsageError(_ONE_RUN.format(flag))


def check_plan(made: Plan, share: Share) -> None:
    """Raises UsageError where there are more shards than requests may be under way at once."""
    if made.divisible is None:
        return
    flag, most = made.divisible
    if share.of > most:
        raise UsageError(
            f"{share.of} shards of {flag} {most}: some would have no slot; "
            f"start {most} shards or fewer, or raise {flag}"
        )


def check_digest(made: Plan, expected: str | None) -> None:
    """Raises MeasureError where the plan, as the server takes it, is not the one that was expected."""
    if expected is not None and (digest := made.digest()) != expected:
        adapted = made.adaptation.fields
        fields = f" (the server refused {', '.join(field.name for field in adapted)} here)" if adapted else ""
        raise MeasureError(
            f"the plan is {digest}, not {expected} of --expect-plan{fields}: give every shard the same "
            "version of loadgen, profile, flags, --seed and data files"
        )


def format_share(share: Share) -> str:
    """A share as --shard has it."""
    return f"{share.number}/{share.of}"


def name_run(run: str, share: Share | None) -> str:
    """The name of a run's directory."""
    return run if share is None else f"{run}-shard-{share.number}-of-{share.of}"


def format_title(share: Share | None) -> str:
    """What the title of a display begins with."""
    return "" if share is None else f"shard {format_share(share)} of "


def divide_warm_up(options: TransportOptions, warmups: int) -> TransportOptions:
    """The options of the warm-up: its part, at least one request, and no instant to wait for."""
    share = options.part.share
    of = min(share.of, warmups) or 1
    return replace(options.alone(), part=PlanPart(Share(share.number % of, of)))


def make_start_wait(made: Plan, options: Options, display: Display, interrupts: Interrupts) -> StartWait:
    """The wait for the instant at which a run is to begin, if there is one."""
    return StartWait(options.start_at, made.streams // options.share.of, display, interrupts)


def make_shard_facts(made: Plan, options: Options) -> ShardFacts | None:
    """Which part of its plan a run sends, by which clock; None of a run that sends all of it."""
    share, start = options.shard, options.start_at
    if share is None:
        return None
    from loadgen.features.shards.shard_clocks import read_clock  # few runs need it

    return ShardFacts(
        number=share.number,
        of=share.of,
        version=__version__,
        start_at_ns=0 if start is None else start.wall_ns,
        requests=None if made.total is None else len(share.list_indices(len(made), made.sessions)),
        sessions=made.sessions is not None,
        before=read_clock(),
    )


def add_clock(so_far: Facts) -> Facts:
    """The facts of a shard with its clock once more, after its run."""
    if so_far.shard is None:
        return so_far
    from loadgen.features.shards.shard_clocks import read_clock

    return replace(so_far, shard=replace(so_far.shard, after=read_clock()))


def is_empty(run: Facts) -> bool:
    """Whether a run is of a shard that has no request: the plan has fewer than there are shards."""
    return run.shard is not None and run.shard.requests == 0


class Punctual(At):
    """At a given instant, in a process that is ready by then; else never: `late_ns` says how late it was.

    Make it before the fork, in the process that is to read `late_ns`: it sends nothing itself, and is not
    judged. Of several processes the latest counts.
    """

    def __init__(self, instant_ns: int) -> None:
        super().__init__(instant_ns)
        self._late = memoryview(mmap.mmap(-1, 8)).cast("q")
        self._maker, self._ready = os.getpid(), False

    @property
    def late_ns(self) -> int:
        """How long after the instant a process was ready; 0: in time, or not yet ready."""
        return int(self._late[0])

    def begin_ns(self, now_ns: int) -> int:
        if not self._ready and os.getpid() != self._maker:
            self._ready = True
            if now_ns > self.instant_ns:
                self._late[0] = max(self._late[0], now_ns - self.instant_ns)
        return 0 if self._late[0] else self.instant_ns


def lead_s(connections: int) -> float:
    """How long before the start connections begin to be opened, in seconds."""
    return min(_LEAST_LEAD_S + connections / _CONNECTED_PER_S, _MOST_LEAD_S)


class StartWait:
    """The wait for an instant at which a run is to begin; where there is none nothing waits.

    The wall clock may be set meanwhile: what it shows in the end counts.
    """

    def __init__(
        self,
        start: PlannedStart | None,
        connections: int,
        display: Display,
        interrupts: Interrupts,
        clocks: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.start, self.display, self.interrupts = start, display, interrupts
        self.lead_s = lead_s(connections)
        self.clocks, self.sleep = clocks, sleep

    def until(self, before_s: float = 0.0) -> None:
        """Return that long before the connections are to be opened; at once where that has passed."""
        ahead_s = self.lead_s + before_s
        if self.start is None or self._left_s <= ahead_s:
            return
        with self.display.waiting(f"waiting for the start at {self.start}", self._left_s):
            while (left_s := self._left_s - ahead_s) > 0:
                self.interrupts.poll()
                self.sleep(min(left_s, _POLL_S))

    def begun(self, options: TransportOptions) -> TransportOptions:
        """The options with the start, once it is so near that the connections are to be opened.

        Raises MeasureError where the instant has passed; so does `gone` of what is returned, where the
        capturing process was not ready in time.
        """
        if self.start is None:
            return options
        self.until()
        instant_ns = self.start.instant_ns(self.clocks)
        self._check(self.clocks.now_ns() - instant_ns)
        start, gone = Punctual(instant_ns), options.gone

        def late_or_gone() -> bool:
            self._check(start.late_ns)
            return gone()

        return replace(options, part=replace(options.part, start=start), gone=late_or_gone)

    @property
    def _left_s(self) -> float:
        """How long it is until the instant, in seconds; negative where it has passed."""
        assert self.start is not None
        return (self.start.instant_ns(self.clocks) - self.clocks.now_ns()) / SECOND_NS

    def _check(self, late_ns: int) -> None:
        if late_ns > 0:
            raise MeasureError(
                f"not ready until {late_ns / SECOND_NS:.2g} s after {START_AT} {self.start}: nothing was "
                "measured; give a later instant, the same to all shards"
            )
