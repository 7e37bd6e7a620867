"""Calibration: how accurate this client was on this machine, by its self-test, and the cache of it."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
import numpy as np
from pydantic import BaseModel, Field, ValidationError

from loadgen.base import files, untrusted
from loadgen.base.arrays import Int64
from loadgen.figures.distribution import compute_medians, compute_percentiles

HEADROOM = 2  # times the messages per second of a run that a client should be able to time
HELD_PERCENT = 5.0  # a load is held while P99 of the gap error is under this share of the true gap
# What moves the client's figures; the rest of the environment may change under a calibration.
_DECIDING = ("cpu", "cpus", "machine", "platform", "python", "loadgen", "httpx", "httptools", "numpy")
_LOG = logging.getLogger("loadgen")
_LOG.addHandler(logging.NullHandler())  # a library prints nothing of its own accord
_MOST_BYTES = 1 << 20  # of the cache; each self-test has half a kilobyte

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
        median_us, p99_us = compute_percentiles(off_us, (50, 99))
        percent = 100 * p99_us / (max(float(compute_medians(true_ns)), 1.0) / 1e3)
        return cls(median_us=median_us, p99_us=p99_us, max_us=float(off_us.max()), p99_percent=percent)

    def percent(self, value_us: float) -> float:
        """Convert an error in µs to percent of the true median."""
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

    @property
    def capacity_messages_per_s(self) -> float:
        """The highest load held, in messages per second, whatever tokens they carry."""
        return self.capacity_tokens_per_s / self.tokens_per_message

    def capacity_of(self, workers: int) -> float:
        """Estimate the messages per second that N workers hold, in proportion to those measured."""
        return self.capacity_messages_per_s * workers / self.workers

    def headroom(self, messages_per_s: float, workers: int = 1) -> float:
        """Compute N workers' capacity ÷ a run's messages/s; 0 if no load was held, inf if it had none."""
        return self.capacity_of(workers) / messages_per_s if messages_per_s > 0 else float("inf")


class _Cache(BaseModel, extra="forbid"):
    """The cache file: the latest of each transport, environment and number of workers."""

    format: Literal[1] = 1
    calibrations: tuple[Calibration, ...] = ()


def environment_digest(facts: Mapping[str, str]) -> str:
    """Hash those facts of `describe_machine()` that move figures, to match stored self-tests."""
    named = msgspec.json.encode([[name, facts.get(name, "")] for name in _DECIDING])
    return hashlib.blake2b(named, digest_size=8).hexdigest()


def cache_path() -> Path:
    """Return the file of stored self-tests: $XDG_CACHE_HOME or ~/.cache, then loadgen/selftest.json."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "loadgen" / "selftest.json"


def read_remembered(transport: str, environment: str, workers: int = 1) -> Calibration | None:
    """Read a transport's last self-test in an environment by N workers, else by one; None without one."""
    kept = _read()
    return kept.get((transport, environment, workers)) or kept.get((transport, environment, 1))


def remember(measured: Iterable[Calibration]) -> bool:
    """Store self-tests in the cache, replacing older ones; on failure warn and return False."""
    path = cache_path()
    latest = _read() | {_key(each): each for each in measured}
    cache = _Cache(calibrations=tuple(latest.values()))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write_text(path, cache.model_dump_json(indent=1))
    except OSError as error:
        _LOG.warning("the self-test's result is not stored: %s: %s", path, error.strerror)
        return False
    return True


def _key(each: Calibration) -> tuple[str, str, int]:
    return each.transport, each.environment, each.workers


def _read() -> dict[tuple[str, str, int], Calibration]:
    """Read the cache by (transport, environment, workers); if damaged, warn and return {}."""
    path = cache_path()
    try:
        cache = _Cache.model_validate_json(untrusted.read_file_bytes(path, _MOST_BYTES))
        return {_key(each): each for each in cache.calibrations}
    except FileNotFoundError:
        return {}
    except OSError as error:
        why = error.strerror or type(error).__name__
    except ValidationError as error:
        why = f"it is damaged: {error.errors()[0]['msg']}"
    _LOG.warning("earlier self-tests are ignored: %s: %s", path, why)
    return {}
