"""Shard facts: which part of a plan a run sent, by which clock, and of which runs a merged one was made."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from loadgen.base import bounds

_Time = Annotated[int, Field(ge=-(2**61), le=2**61)]  # a sum of two fits into 64 bits
_Count = Annotated[int, Field(ge=0, le=bounds.MOST_REQUESTS)]


class ClockReading(BaseModel, extra="forbid", frozen=True):
    """How a machine's CLOCK_MONOTONIC stood to a reference, and how sure that is."""

    boot: str  # of the machine: runs of the same boot have the same clock
    offset_ns: _Time  # the reference − CLOCK_MONOTONIC
    error_ns: _Time = -1  # it is off by no more; -1: unknown
    reference: str = "wall clock"  # or that of the driver, measured by round trips


class ShardFacts(BaseModel, extra="forbid", frozen=True):
    """Which part of a plan a run sent."""

    number: _Count  # counted from 0
    of: int = Field(ge=1, le=bounds.MOST_REQUESTS)
    version: str  # loadgen's
    start_at_ns: _Time = 0  # when all shards were to begin, CLOCK_REALTIME; 0: each at once
    requests: _Count | None = None  # of the plan, its own; None: as many as it sent
    sessions: bool = False  # of the plan stay whole; else request i is of shard i mod `of`
    before: ClockReading
    after: ClockReading | None = None  # None: the run was killed

    @property
    def name(self) -> str:
        """As --shard has it."""
        return f"{self.number}/{self.of}"


class MergedShard(BaseModel, extra="forbid", frozen=True):
    """One of the runs that a merged one was made of."""

    number: int
    of: int
    requests: int  # that it sent, or planned and lost
    lost: str = ""  # why it left nothing, or not all
    began_ns: int = 0  # when it sent its first request, by the clock of the first shard; 0: it sent none
    offset_ns: int = 0  # added to its times; those of the first shard stay
    error_ns: int = 0  # by how much that may be off at most; -1: unknown
    reference: str = ""  # by which its clock was compared with that of the first; "": it is the same clock
    cores: float = 0.0  # that the busiest of its capturing processes kept busy
    request_id_prefix: str | None = (
        None  # of its requests' ids; None: not stored, or sessions were kept whole
    )

    @property
    def name(self) -> str:
        """As --shard has it."""
        return f"{self.number}/{self.of}"
