"""Calibration: how accurate this client was on this machine, by its self-test, and the cache of it."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
import numpy as np
from pydantic import BaseModel, Field, ValidationError

from loadgen.base import files, untrusted
from loadgen.base.arrays import Int64
from loadgen.figures.peaks import peak_concurrency
from loadgen.figures.percentiles import compute_medians, compute_percentiles
from loadgen.records.record import Records

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


class Sent(msgspec.Struct):
    """One request in the null server's log; `wrote_ns` is of each message with a token."""

    request_id: str
    received_ns: int
    wrote_ns: list[int]


class Seen(msgspec.Struct, frozen=True):
    """A self-test's run as the client measured it next to the null server's log; (measured, true) in ns."""

    requests: int
    failed: int
    unlike: int  # answers with more or fewer messages than were written
    tokens: int  # of the answers that are alike, as these all
    messages: int
    shared_reads: int
    tokens_per_s: float  # first write → last write
    streams: int  # most in the server at once
    ttft: tuple[Int64, Int64]
    gap: tuple[Int64, Int64]
    later_gap: tuple[Int64, Int64]  # without each answer's first
    e2e: tuple[Int64, Int64]
    first_error: str = ""  # of the first request that failed

    @property
    def events_per_read(self) -> float:
        """Messages with a token per read: 1 if each had a read of its own."""
        return self.messages / max(1, self.messages - self.shared_reads)

    def is_held(self, streams: int) -> bool:
        """Whether all `streams` ran at once, arrived whole, and had accurate gaps.

        An answer's first gap is left out: in an answer of a hundred messages it is beyond P99, and in the
        short ones of a self-test it would be most of what P99 sees.
        """
        whole = not (self.failed or self.unlike) and self.streams >= streams and len(self.later_gap[0])
        return bool(whole) and Error.from_pairs(*self.later_gap).p99_percent < HELD_PERCENT


def compare(records: Records, sent: Mapping[int, Sent]) -> Seen:
    """Compare a self-test's records with the null server's log, which is by plan index."""
    ok, alike, rows = records.ok, [], []
    for i, index in enumerate(records.index.tolist()):
        row = sent.get(index)
        if ok[i] and row is not None and len(row.wrote_ns) == records.start[i + 1] - records.start[i]:
            alike.append(i)
            rows.append(row)
    measured = [records.arrival_ns[records.start[i] : records.start[i + 1]] for i in alike]
    wrote = [np.array(row.wrote_ns, np.int64) for row in rows]
    received_ns = np.array([row.received_ns for row in rows], np.int64)
    first_ns, last_ns = (np.array([times[at] for times in wrote], np.int64) for at in (0, -1))
    sent_ns, tokens = records.sent_ns[alike], int(records.output_tokens[alike].sum())
    span_s = (int(last_ns.max()) - int(first_ns.min())) / 1e9 if alike else 0.0
    failures = records.failed
    return Seen(
        requests=len(records),
        failed=len(failures),
        unlike=int(ok.sum()) - len(alike),
        tokens=tokens,
        messages=sum(map(len, measured)),
        shared_reads=int(records.shared_reads[alike].sum()),
        tokens_per_s=tokens / span_s if span_s else 0.0,
        streams=peak_concurrency(received_ns, last_ns),
        ttft=(np.array([times[0] for times in measured], np.int64) - sent_ns, first_ns - received_ns),
        gap=(_gaps(measured), _gaps(wrote)),
        later_gap=(_gaps([times[1:] for times in measured]), _gaps([times[1:] for times in wrote])),
        e2e=(np.array([times[-1] for times in measured], np.int64) - sent_ns, last_ns - received_ns),
        first_error=f"{failures[0].kind}: {failures[0].detail}" if failures else "",
    )


def _gaps(streams: Sequence[Int64]) -> Int64:
    return np.concatenate([np.zeros(0, np.int64), *(np.diff(times) for times in streams)])


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
        """Compute the capacity of N workers ÷ a run's messages per second; 0 if no load was held."""
        return self.capacity_of(workers) / messages_per_s if messages_per_s > 0 else float("inf")


class _Cache(BaseModel, extra="forbid"):
    """The cache file: the latest of each transport, environment and number of workers."""

    format: Literal[1] = 1
    calibrations: tuple[Calibration, ...] = ()


def environment_digest(facts: Mapping[str, str]) -> str:
    """Hash the facts of `loadgen.host.environment.describe_machine()`, to match stored self-tests."""
    named = msgspec.json.encode([[name, facts.get(name, "")] for name in _DECIDING])
    return hashlib.blake2b(named, digest_size=8).hexdigest()


def cache_path() -> Path:
    """Return the file of stored self-tests: $XDG_CACHE_HOME or ~/.cache, then loadgen/selftest.json."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "loadgen" / "selftest.json"


def read_remembered(transport: str, environment: str, workers: int = 1) -> Calibration | None:
    """Read the last self-test of a transport here with N workers, else with one; None if there is none."""
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
