"""Part: what a command that sends a part of a plan checks, does and stores otherwise than one that sends all.

Shard 0 alone does what concerns the server as a whole: it empties the cache, samples the server's counters
and its machine, and asks for the fingerprint. The warm-up is divided as the plan is, and each shard sends at
least one request of it: so each learns what the server refuses, and all send the same plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgen import __version__
from loadgen.base import clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.structs import replace
from loadgen.features.shards.start_at import StartWait
from loadgen.plan.plan import Plan
from loadgen.run.measure import PlanPart, TransportOptions
from loadgen.run.progress import Display
from loadgen.run.signals import Interrupts
from loadgen.transport.sending.share import Share
from loadgen.verdict.run_facts import Facts, ShardFacts

if TYPE_CHECKING:
    from loadgen.run.options import Options

_ONE_RUN = "{} is of one run: leave out --repeat, and name one profile"


def check(options: Options) -> None:
    """Raises UsageError where a shard's options cannot be those of one plan that is sent by several."""
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


def shown(share: Share) -> str:
    """A share as --shard has it."""
    return f"{share.number}/{share.of}"


def name(run: str, share: Share | None) -> str:
    """The name of a run's directory."""
    return run if share is None else f"{run}-shard-{share.number}-of-{share.of}"


def title(share: Share | None) -> str:
    """What the title of a display begins with."""
    return "" if share is None else f"shard {shown(share)} of "


def of_warm_up(options: TransportOptions, warmups: int) -> TransportOptions:
    """The options of the warm-up: its part, at least one request, and no instant to wait for."""
    share = options.part.share
    of = min(share.of, warmups) or 1
    return replace(options.alone(), part=PlanPart(Share(share.number % of, of)))


def start_wait(made: Plan, options: Options, display: Display, interrupts: Interrupts) -> StartWait:
    """The wait for the instant at which a run is to begin, if there is one."""
    return StartWait(options.start_at, made.streams // options.share.of, display, interrupts)


def facts(made: Plan, options: Options) -> ShardFacts | None:
    """Which part of its plan a run sends, by which clock; None of a run that sends all of it."""
    share, start = options.shard, options.start_at
    if share is None:
        return None
    from loadgen.features.shards.clock_readings import reading  # few runs need it

    return ShardFacts(
        number=share.number,
        of=share.of,
        version=__version__,
        start_at_ns=0 if start is None else start.wall_ns,
        requests=None if made.total is None else len(share.list_indices(len(made), made.sessions)),
        sessions=made.sessions is not None,
        before=reading(),
    )


def add_clock(so_far: Facts) -> Facts:
    """The facts of a shard with its clock once more, after its run."""
    if so_far.shard is None:
        return so_far
    from loadgen.features.shards.clock_readings import reading

    return replace(so_far, shard=replace(so_far.shard, after=reading()))


def is_empty(run: Facts) -> bool:
    """Whether a run is of a shard that has no request: the plan has fewer than there are shards."""
    return run.shard is not None and run.shard.requests == 0
