"""Shard settings: which part of a plan a command sends, from when, or which Ray cluster sends all of it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from loadgen.base import clock
from loadgen.base.clock import SECOND_NS, SYSTEM_CLOCK, Clock
from loadgen.base.errors import UsageError
from loadgen.base.parsing import integer_between, parse_with
from loadgen.base.text import quote_value
from loadgen.settings.setting import CLUSTER, SHARDS, Makes, Setting

if TYPE_CHECKING:
    from loadgen.base.arrays import Int64

AUTO, LOCAL = "auto", "local"
MOST_SHARDS, MOST_OF_A_CLUSTER = 100_000, 4096
START_AT = "--start-at"
MOST_AHEAD_S = 86_400
_SHARD = re.compile(r"(?:(\d{1,6})|auto)/(\d{1,6})", re.ASCII)
_EPOCH = re.compile(r"(\+?)(\d{1,12})(?:\.(\d{1,9})\d*)?", re.ASCII)
_DIGITS, _HEX = 32, frozenset("0123456789abcdef")  # of a plan's digest
ADDRESS = re.compile(r"(ray://)?([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\]):(\d{1,5})", re.ASCII)


class Share(msgspec.Struct, frozen=True):
    """One of `of` equal shares of a plan, counted from 0: one per process, over all shards and workers.

    Slots are numbered so that no two processes have the same: slot k of this one is `number + of * k`.
    """

    number: int = 0
    of: int = 1

    @property
    def name(self) -> str:
        """The share as --shard writes it: 0/4."""
        return f"{self.number}/{self.of}"

    def split(self, workers: int) -> list["Share"]:
        """Divide this share among workers; together they send what this one would."""
        return [Share(self.number + self.of * worker, self.of * workers) for worker in range(workers)]

    def list_indices(self, count: int, sessions: "Int64 | None" = None) -> "Int64":
        """List the plan indices of this share of `count` requests, ascending: each `of`-th.

        With `sessions`, the session of each request, they are all requests of each `of`-th session.
        """
        import numpy as np  # which --help does without

        if sessions is None:
            return np.arange(self.number, count, self.of, dtype=np.int64)
        _, ranks = np.unique(sessions[:count], return_inverse=True)
        return np.flatnonzero(ranks % self.of == self.number).astype(np.int64)

    def count_slots(self, most: int) -> int:
        """Count how many of `most` slots belong to this share."""
        return len(range(self.number, most, self.of))

    def divide_limit(self, most: int | None) -> int | None:
        """Return this share of a limit of requests at once; None where there is none."""
        return None if most is None else self.count_slots(most)

    def number_slot(self, position: int) -> int:
        """Return the number of this share's slot at a position, from 0."""
        return self.number + self.of * position


WHOLE = Share()


class Launcher(msgspec.Struct, frozen=True):
    """A launcher of several processes, and its environment variables for rank and count."""

    name: str
    number: str
    of: str = ""  # "": it does not say


# The first that speaks is the one to be named in messages.
LAUNCHERS = (
    Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("MPI", "PMI_RANK", "PMI_SIZE"),
    Launcher("a Kubernetes Indexed Job", "JOB_COMPLETION_INDEX"),
)
_NAMES = ", ".join(launcher.number for launcher in LAUNCHERS)


class _Rank(msgspec.Struct, frozen=True):
    launcher: Launcher
    number: int
    of: int | None

    def __str__(self) -> str:
        of = "" if self.of is None else f" of {self.launcher.of}={self.of}"
        return f"{self.launcher.number}={self.number}{of}"


def read_share(text: str, environ: Mapping[str, str] = os.environ) -> Share:
    """Parse `I/N`, `auto` or `auto/N` of --shard, `auto` by the launcher's variables in `environ`.

    Raises ValueError that says what to give.
    """
    if text == AUTO:
        rank = _read_rank(environ)
        if rank.of is None:
            raise ValueError(f"{rank} does not say how many shards there are: give auto/N")
        return _make_share(rank.number, rank.of, str(rank))
    match = _SHARD.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{quote_value(text)} is not a shard: give I/N as 0/4 (the last is 3/4), auto, or auto/N"
        )
    number, of = match.groups()
    if number is not None:
        return _make_share(int(number), int(of), text)
    rank = _read_rank(environ)
    if rank.of is not None and rank.of != int(of):
        raise ValueError(f"{text}: {rank}: give auto, or start {int(of)} processes")
    return _make_share(rank.number, int(of), f"{text} with {rank}")


def _read_rank(environ: Mapping[str, str]) -> _Rank:
    """Return the first launcher's rank that has a count, else the first; raises ValueError if they differ."""
    ranks = [
        _Rank(launcher, number, _read_number(environ, launcher.of))
        for launcher in LAUNCHERS
        if (number := _read_number(environ, launcher.number)) is not None
    ]
    if not ranks:
        raise ValueError(f"no launcher has numbered this process ({_NAMES} are not set): give I/N")
    first = ranks[0]
    for other in ranks[1:]:
        if other.number != first.number or (None not in (other.of, first.of) and other.of != first.of):
            raise ValueError(
                f"{first} and {other} disagree: give I/N, of the variables that count the shards"
            )
    return next((rank for rank in ranks if rank.of is not None), first)


def _read_number(environ: Mapping[str, str], name: str) -> int | None:
    """Read a variable's whole number, None if it is empty or not set; raises ValueError for other values."""
    text = environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise ValueError(f"{name}={quote_value(text)} is not a number: give I/N")
    return int(text)


def _make_share(number: int, of: int, text: str) -> Share:
    """Make the share; raises ValueError, which begins with `text`, unless number is in [0, of)."""
    if not 1 <= of <= MOST_SHARDS:
        raise ValueError(f"{text}: there are from 1 to {MOST_SHARDS} shards")
    if number >= of:
        raise ValueError(f"{text}: shards are counted from 0: the last of {of} is {of - 1}/{of}")
    return Share(number, of)


class PlannedStart(msgspec.Struct, frozen=True):
    """The instant at which requests begin, CLOCK_REALTIME in nanoseconds."""

    wall_ns: int
    relative: bool = False  # to when this command began: no other command has the same

    def __str__(self) -> str:
        """The instant in local time, to the millisecond, with its zone; beyond the calendar in seconds."""
        try:
            at = datetime.fromtimestamp(self.wall_ns / SECOND_NS, UTC).astimezone()
        except (ValueError, OverflowError, OSError):
            return f"{self.wall_ns / SECOND_NS:.3f} s since 1970"
        return at.isoformat(" ", "milliseconds")

    def check(self, wall_ns: int) -> None:
        """Raise UsageError if at `wall_ns` the instant has passed, or is more than a day ahead."""
        ahead_s = (self.wall_ns - wall_ns) / SECOND_NS
        if ahead_s <= 0:
            past = f"was {abs(ahead_s):.1f} s ago"
            raise UsageError(f"{START_AT} {self} {past}: give a later instant, the same to all shards")
        if ahead_s > MOST_AHEAD_S:
            raise UsageError(f"{START_AT} {self} is {ahead_s / 3600:.0f} hours ahead: give one within a day")

    def instant_ns(self, clocks: Clock = SYSTEM_CLOCK) -> int:
        """Convert the instant to CLOCK_MONOTONIC (ns), as the wall clock stands now."""
        return self.wall_ns - clock.measure_realtime_offset_ns(clocks)


def read_instant(text: str, clocks: Clock = SYSTEM_CLOCK) -> PlannedStart:
    """Parse the instant of `--start-at`: seconds since 1970, ISO 8601 with a zone, or +SECONDS from now.

    Raises ValueError that says how to write one.
    """
    if match := _EPOCH.fullmatch(text):
        plus, seconds, fraction = match.groups()
        time_ns = int(seconds) * SECOND_NS + int((fraction or "").ljust(9, "0"))
        return PlannedStart(time_ns + clocks.wall_ns(), True) if plus else PlannedStart(time_ns)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise ValueError(
            f"{quote_value(text)} is not an instant: give seconds since 1970 (date +%s), ISO 8601 with its "
            "zone (2026-01-31T12:00:00Z), or +SECONDS from now"
        )
    whole_s = int((when.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    return PlannedStart(whole_s * SECOND_NS + when.microsecond * 1000)


def parse_digest(text: str) -> str:
    """Return a plan's digest as it is; raises ValueError unless it has 32 hexadecimal digits."""
    if len(text) != _DIGITS or not set(text) <= _HEX:
        raise ValueError(f"{quote_value(text)} is not a plan's digest: it has {_DIGITS} digits, 0 to f")
    return text


def check_address(text: str) -> str:
    """Return the address of --cluster as it is; raises ValueError that says how to write one."""
    match = ADDRESS.fullmatch(text)
    if text not in (AUTO, LOCAL) and (match is None or not 0 < int(match[3]) < 1 << 16):
        raise ValueError(
            f"{quote_value(text)} is not an address: give auto, local, HOST:PORT or ray://HOST:PORT"
        )
    return text


# fmt: off
_part = partial(Setting, Makes.CLIENT, group=SHARDS)
_cluster = partial(Setting, Makes.CLIENT, group=CLUSTER)


@dataclass(frozen=True)
class ShardOptions:
    """The settings of one of several commands, or of a Ray cluster, that send a plan together."""

    # None: all of the plan.
    shard: Annotated[Share | None, _part("send part I of N of the plan, counted from 0; auto: as Slurm, "
        "MPI or a Kubernetes Indexed Job numbers this process (needs --seed; `loadgen merge` joins the "
        "runs)", read=parse_with(read_share), metavar="I/N|auto|auto/N")] = None
    # None: as soon as it can.
    start_at: Annotated[PlannedStart | None, _part("begin at this instant: seconds since 1970, ISO 8601 "
        "with a zone, or +SECONDS from now", read=parse_with(read_instant), metavar="WHEN")] = None
    # The digest of the only plan that may be sent.
    expect_plan: Annotated[str | None, _part("send no other plan than the one of this digest",
        read=parse_with(parse_digest), metavar="DIGEST")] = None
    # The address of the cluster; None: this machine sends.
    cluster: Annotated[str | None, _cluster("send the load from a Ray cluster: HOST:6379, "
        "ray://HOST:10001, auto (RAY_ADDRESS, or the one on this machine), or local: started for the run",
        read=parse_with(check_address), metavar="auto|ADDRESS")] = None
    shards: Annotated[int | None, _cluster("number of processes that share the load, spread over the "
        "nodes of --cluster", read=integer_between(1, MOST_OF_A_CLUSTER), metavar="N")] = None
# fmt: on
