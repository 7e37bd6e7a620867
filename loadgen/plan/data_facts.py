"""Data facts: what a plan's requests were made of, what of it was left out, and how long they are."""

from __future__ import annotations

import math
from typing import Self

import msgspec
import numpy as np

from loadgen.base.arrays import Int64

# Why a trace's rows are left out by its limits: counted up to the last request, not of the whole file.
CAPS = ("longer than --trace-max-input-len", "longer than --trace-max-output-len")


class LengthFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics of the planned lengths that are known, in tokens."""

    known: int  # requests whose length is known before they are sent
    mean: float
    sd: float
    least: int
    p50: int
    p90: int
    p99: int
    most: int

    @classmethod
    def measure(cls, lens: Int64) -> Self | None:
        """Compute statistics of lengths, int64[requests], without unknown ones; None if none is known.

        A percentile is the smallest length that at least this share of the requests does not exceed.
        """
        known = lens[lens > 0]
        if not len(known):
            return None
        p50, p90, p99 = np.percentile(known, (50, 90, 99), method="inverted_cdf").tolist()
        return cls(
            known=len(known),
            mean=float(known.mean()),
            sd=float(known.std()),
            least=int(known.min()),
            p50=int(p50),
            p90=int(p90),
            p99=int(p99),
            most=int(known.max()),
        )


class ScheduleFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a trace's requests are due, after window, speed-up, idle cap and jitter."""

    format: str
    span_s: float  # first to last request
    rate_per_s: float  # (requests − 1) / span; 0 where all are due at once
    instants: int  # different times among the file's rows that are sent
    requests: int
    grid_s: float = 0.0  # the file's timestamps are all multiples of it, coarser than their unit; 0: none
    spread: bool = False  # --trace-jitter spread the requests of one instant over its grid
    speed_up: float = 1.0
    start_s: float = 0.0  # of the window, in the file's time
    end_s: float | None = None
    idle_cap_s: float | None = None
    idle_cut_s: float = 0.0  # what the cap took out


class DataFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The source of a plan's requests, and which of its rows were left out."""

    kind: str = "random"  # a key of SOURCES; of a file without a name, what its rows are
    file: str = ""  # as it was named
    file_digest: str = ""  # blake2b of its bytes, or of those of all files of a directory
    rows: int = 0  # of the file
    sent: int = 0  # different rows of it that the plan sends
    repeated: int = 0  # requests that send a row which an earlier one sends too
    skipped: dict[str, int] = {}  # rows left out, by why
    clipped: int = 0  # requests cut down to a length that was asked for
    text: str = ""  # where the words of the prompts come from
    input: LengthFacts | None = None
    output: LengthFacts | None = None
    # Prompt tokens that a prefix cache without a limit and empty at the start would hold already, in the
    # order of the plan; None where that is not known before the run.
    reusable_tokens: int | None = None
    schedule: ScheduleFacts | None = None  # of a trace that is sent at its own times

    def rate_per_s(self, request_rate_per_s: float) -> float:
        """Return requests per second: a trace's mean at its own times, else the given rate."""
        return request_rate_per_s if self.schedule is None else self.schedule.rate_per_s or math.inf

    @property
    def reuse(self) -> float | None:
        """The share of prompt tokens, 0 to 1, that an empty, unlimited prefix cache could reuse."""
        if self.reusable_tokens is None or self.input is None:
            return None
        return self.reusable_tokens / (self.input.mean * self.input.known)
