"""Record: one request decoded; Records: all of a run as columns, the only thing metrics read."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.arrays import Bool, Int64
from loadgen.failure import Failure, FailureKind

UNKNOWN = -1
_NONE = np.zeros(0, np.int64)


class Record(msgspec.Struct):
    """One decoded request; times are CLOCK_MONOTONIC nanoseconds, counts -1 where unknown.

    `arrival_ns` and `tokens` are int64[messages]: the messages that carried tokens, in order,
    and how many each carried. A failed request keeps what arrived before it failed.
    """

    index: int
    slot: int
    intended_ns: int
    sent_ns: int
    end_ns: int  # last byte of the response
    connect_ns: int = 0
    resends: int = 0
    first_byte_ns: int = 0
    arrival_ns: Int64 = msgspec.field(default_factory=lambda: _NONE)
    tokens: Int64 = msgspec.field(default_factory=lambda: _NONE)
    planned_input: int = UNKNOWN  # the plan's prompt tokens
    planned_output: int = UNKNOWN  # the answer's length that was asked for
    input_tokens: int = UNKNOWN  # usage.prompt_tokens
    output_tokens: int = UNKNOWN  # usage.completion_tokens, else the messages counted
    cached_tokens: int = UNKNOWN  # usage.prompt_tokens_details.cached_tokens
    server_queue_ns: int = UNKNOWN  # the server's own: queued → scheduled (vLLM's `metrics`)
    server_ttft_ns: int = UNKNOWN  # the server's own: scheduled → first token, so without the queue
    http_status: int = UNKNOWN  # of the response
    usage: bool = False  # output_tokens is the server's own count
    exact_tokens: bool = True  # tokens per message are known, not spread evenly
    shared_reads: int = 0  # token messages that came in one read with an earlier one
    shared_lag_ns: int = 0  # user-space stamp minus kernel stamp, over these messages
    reads: int = 0
    unstamped_reads: int = 0  # reads without a kernel stamp
    lag_sum_ns: int = 0  # user-space stamp minus kernel stamp, over the reads
    lag_max_ns: int = 0
    finish_reason: str = ""
    failure: Failure | None = None
    text: str | None = None  # kept only when asked for


_SCALARS = (
    "index",
    "slot",
    "intended_ns",
    "sent_ns",
    "end_ns",
    "connect_ns",
    "resends",
    "first_byte_ns",
    "planned_input",
    "planned_output",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "usage",
    "exact_tokens",
    "shared_reads",
    "shared_lag_ns",
    "reads",
    "unstamped_reads",
    "lag_sum_ns",
    "lag_max_ns",
    "server_queue_ns",
    "server_ttft_ns",
    "http_status",
)
_LATER = ("server_queue_ns", "server_ttft_ns", "http_status")  # files without them are older


class Records(msgspec.Struct, frozen=True):
    """Every request of a run, sorted by plan index.

    `columns[name]` is int64[requests] for each scalar of Record; the messages of request i are
    `arrival_ns[start[i]:start[i + 1]]` and `tokens[...]`, int64[messages of all requests].
    """

    columns: dict[str, Int64]
    start: Int64
    arrival_ns: Int64
    tokens: Int64
    failures: list[Failure | None]
    finish_reasons: list[str]
    texts: list[str | None]

    def __len__(self) -> int:
        return len(self.failures)

    def __getattr__(self, name: str) -> Int64:
        try:
            return self.columns[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def ok(self) -> Bool:
        """Which requests succeeded, bool[requests]."""
        return np.fromiter((f is None for f in self.failures), np.bool_, len(self))

    @classmethod
    def of(cls, records: Iterable[Record]) -> Records:
        """The columns of these records."""
        rows = sorted(records, key=lambda record: record.index)
        counts = np.fromiter((len(r.arrival_ns) for r in rows), np.int64, len(rows))
        return cls(
            columns={
                name: np.fromiter(map(attrgetter(name), rows), np.int64, len(rows)) for name in _SCALARS
            },
            start=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
            arrival_ns=np.concatenate([_NONE, *(r.arrival_ns for r in rows)]),
            tokens=np.concatenate([_NONE, *(r.tokens for r in rows)]),
            failures=[r.failure for r in rows],
            finish_reasons=[r.finish_reason for r in rows],
            texts=[r.text for r in rows],
        )

    def save(self, path: Path) -> None:
        """Write every column to an uncompressed `.npz`; texts are not part of it."""
        arrays: dict[str, NDArray[Any]] = dict(
            self.columns,
            start=self.start,
            arrival_ns=self.arrival_ns,
            tokens=self.tokens,
            failure_kind=np.array([f.kind.value if f else "" for f in self.failures], np.str_),
            failure_detail=np.array([f.detail if f else "" for f in self.failures], np.str_),
            finish_reason=np.array(self.finish_reasons, np.str_),
        )
        np.savez(path, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path) -> Records:
        """Read what `save` wrote; raises OSError, KeyError or ValueError when the file is not one."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            kinds, details = stored["failure_kind"].tolist(), stored["failure_detail"].tolist()
            return cls(
                columns={name: stored[name] for name in _SCALARS if name not in _LATER or name in stored}
                | {name: np.full(len(kinds), UNKNOWN, np.int64) for name in _LATER if name not in stored},
                start=stored["start"],
                arrival_ns=stored["arrival_ns"],
                tokens=stored["tokens"],
                failures=[
                    Failure(FailureKind(kind), detail) if kind else None
                    for kind, detail in zip(kinds, details, strict=True)
                ],
                finish_reasons=stored["finish_reason"].tolist(),
                texts=[None] * len(kinds),
            )
