"""The truth log: when the engine really did what, a JSON line for each request and each injected stall."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from loadgen_servers.log_file import open_log


class StallRow(msgspec.Struct, frozen=True):
    """An injected stall, or a step's part of one, in CLOCK_MONOTONIC."""

    kind: str
    from_ns: int
    to_ns: int
    requests: list[int]  # the numbers of those that waited longer for it
    prefilled: int | None = None  # the number of the one whose prefill it was


class RequestRow(msgspec.Struct, frozen=True):
    """One request: when it came, was queued and scheduled, and when each of its tokens left."""

    number: int  # in order of arrival, from 0
    request_id: str  # its x-request-id; "" without one
    received_ns: int
    queued_ns: int
    scheduled_ns: int
    wrote_ns: list[int]  # right before the step's tokens were written
    kind: str = "request"


def open_truth_log(path: Path) -> Callable[[StallRow | RequestRow], None]:
    """Open a new log, its owner's alone, and return what appends a row to it; raises OSError."""
    fd = open_log(path)

    def append(row: StallRow | RequestRow) -> None:
        os.write(fd, msgspec.json.encode(row) + b"\n")  # at once: a server that is killed has logged all

    return append
