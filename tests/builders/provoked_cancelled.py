"""Provoked, cancelled: runs whose plan cancels requests, each with a doubt."""

from __future__ import annotations

from builders.made_cases import failed, observed, run
from loadgen.transport.failure import FailureKind
from loadgen.verdict.evidence import RunEvidence

OF_CANCELLED: dict[str, tuple[RunEvidence, str, set[str]]] = {
    "all-cancelled": (
        run(failed(1, FailureKind.USER_CANCELLED), window=None),
        "320 of 320 requests were cancelled, none was answered in full",
        set(),
    ),
    "no-abort": (
        run(failed(10, FailureKind.USER_CANCELLED), window=observed()),
        "the server finished 32 of the 32 requests that were cancelled",
        set(),
    ),
}
