"""Calibration: how true this client was on this machine, as its self-test measured it."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict


class Error(BaseModel):
    """Reported minus true, of one figure over many events."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    median_us: float  # of the absolute error, as the others
    p99_us: float
    max_us: float
    p99_percent: float  # of the true value's median


class Calibration(BaseModel):
    """One transport's self-test at one load."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measured: datetime
    environment: str  # a digest of machine and software: another one makes it void
    transport: str
    streams: int
    interval_ms: float  # between messages of a stream
    ttft: Error
    gap: Error  # between successive messages of a stream
    e2e: Error
    events_per_read: float  # messages seen in one read, 1 at best
    capacity_tokens_per_s: float  # most with P99 gap error under 5 %
    capacity_streams: int  # most held at `interval_ms` so
    cpu_us_per_token: float
