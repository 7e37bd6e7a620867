"""Ranks: which shard a command is, as it was given or as the launcher of several processes counts it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

import msgspec

from loadgen.base.text import quote_value
from loadgen.transport.sending.share import Share

AUTO = "auto"
MOST_SHARDS = 100_000
_SHARD = re.compile(r"(?:(\d{1,6})|auto)/(\d{1,6})", re.ASCII)


class Launcher(msgspec.Struct, frozen=True):
    """What starts several processes, and the variables that hold the number of each and their count."""

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
    """What one launcher says."""

    launcher: Launcher
    number: int
    of: int | None

    def __str__(self) -> str:
        of = "" if self.of is None else f" of {self.launcher.of}={self.of}"
        return f"{self.launcher.number}={self.number}{of}"


def read(text: str, environ: Mapping[str, str] = os.environ) -> Share:
    """The shard that `I/N`, `auto` or `auto/N` means; raises ValueError that says what to give."""
    if text == AUTO:
        rank = _rank(environ)
        if rank.of is None:
            raise ValueError(f"{rank} does not say how many shards there are: give auto/N")
        return _checked(rank.number, rank.of, str(rank))
    match = _SHARD.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{quote_value(text)} is no shard: give I/N as 0/4 (the last is 3/4), auto, or auto/N"
        )
    number, of = match.groups()
    if number is not None:
        return _checked(int(number), int(of), text)
    rank = _rank(environ)
    if rank.of is not None and rank.of != int(of):
        raise ValueError(f"{text}: {rank}: give auto, or start {int(of)} processes")
    return _checked(rank.number, int(of), f"{text} with {rank}")


def _rank(environ: Mapping[str, str]) -> _Rank:
    """The rank that the environment has; raises ValueError where it has none, or two."""
    ranks = list(_ranks(environ))
    if not ranks:
        raise ValueError(f"no launcher has numbered this process ({_NAMES} are not set): give I/N")
    first = ranks[0]
    for other in ranks[1:]:
        if other.number != first.number or (None not in (other.of, first.of) and other.of != first.of):
            raise ValueError(
                f"{first} and {other} disagree: give I/N, of the variables that count the shards"
            )
    return next((rank for rank in ranks if rank.of is not None), first)


def _ranks(environ: Mapping[str, str]) -> Iterator[_Rank]:
    for launcher in LAUNCHERS:
        number = _count(environ, launcher.number)
        if number is not None:
            yield _Rank(launcher, number, _count(environ, launcher.of))


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise ValueError(f"{name}={quote_value(text)} is no number: give I/N")
    return int(text)


def _checked(number: int, of: int, text: str) -> Share:
    if not 1 <= of <= MOST_SHARDS:
        raise ValueError(f"{text}: there are from 1 to {MOST_SHARDS} shards")
    if number >= of:
        raise ValueError(f"{text}: shards are counted from 0: the last of {of} is {of - 1}/{of}")
    return Share(number, of)
