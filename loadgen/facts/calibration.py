"""Calibration: how accurate this client was on this machine, by its self-test."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, Field

from loadgen.base.arrays import Int64

HEADROOM = 2  # times the messages per second of a run that a client should be able to time
HELD_PERCENT = 5.0  # a load is held while P99 of the gap error is under this share of the true gap

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Error(BaseModel, extra="forbid", frozen=True):
    """The absolute difference between reported and true values of one figure, over many events."""

    median_us: NotNegative  # of the absolute error, as the others
    p99_us: NotNegative
    max_us: NotNegative
    p99_percent: NotNegative  # of the true value's median

    @classmethod
    def from_pairs(cls, measured_ns: Int64, true_ns: Int64) -> Self:
        """Compute the error of (measured, true) pairs in ns, at least one; a true median < 1 ns is 1 ns."""
        off_us = np.abs(measured_ns - true_ns) / 1e3
        median_us, p99_us = np.percentile(off_us, (50, 99)).tolist()
        percent = 100 * p99_us / (max(float(np.median(true_ns)), 1.0) / 1e3)
        return cls(median_us=median_us, p99_us=p99_us, max_us=float(off_us.max()), p99_percent=percent)

    def percent(self, value_us: float) -> float:
        """Convert an error in µs to percent of the true median; 0 where P99 is 0."""
        return value_us / self.p99_us * self.p99_percent if self.p99_us else 0.0


class Calibration(BaseModel, extra="forbid", frozen=True):
    """One transport's self-test at one load."""

    measured: datetime
    environment: str  # a digest of machine and software: valid for this one only
    transport: str
    workers: int = Field(default=1, ge=1)  # that shared the load
    streams: int = Field(ge=1)  # of all of them, as every figure here
    interval_ms: Positive  # between messages of a stream
    tokens_per_message: int = Field(default=1, ge=1)
    ttft: Error
    gap: Error  # between successive messages of a stream
    e2e: Error
    events_per_read: NotNegative  # messages seen in one read, 1 at best
    capacity_tokens_per_s: NotNegative  # most with P99 gap error under 5 %; 0: no load was held
    capacity_streams: int = Field(ge=0)  # most held at `interval_ms` so
    capacity_bounded: bool = True  # a higher load failed; False: none was tried, there may be more
    cpu_us_per_token: NotNegative  # of the capturing processes

    def capacity_of(self, workers: int) -> float:
        """Estimate the messages per second that N workers hold, in proportion to those measured."""
        return self.capacity_tokens_per_s / self.tokens_per_message * workers / self.workers

    def headroom(self, messages_per_s: float, workers: int = 1) -> float:
        """Compute N workers' capacity ÷ a run's messages/s; 0 if no load was held, inf if it had none."""
        return self.capacity_of(workers) / messages_per_s if messages_per_s > 0 else float("inf")
