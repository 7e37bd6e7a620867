"""What a plan reports of data that nobody read: files, lengths, and the times of a trace."""

from __future__ import annotations

from typing import Any

from builders.made_cases import INPUT, OUTPUT, REQUESTS
from loadgen.plan.planned_requests import DataFacts, ImageFacts, LengthFacts, ScheduleFacts


def lengths(mean: float = INPUT, least: int = INPUT, most: int = INPUT, known: int = REQUESTS) -> LengthFacts:
    """Lengths whose middle is the mean."""
    middle = round(mean)
    return LengthFacts(
        known=known, mean=mean, sd=(most - least) / 4, least=least, p50=middle, p90=most, p99=most, most=most
    )


def schedule(rate_per_s: float = 100.0, **changes: Any) -> ScheduleFacts:
    """A trace at that mean rate, each of its requests at a time of its own."""
    span_s = (REQUESTS - 1) / rate_per_s if rate_per_s else 0.0
    known: dict[str, Any] = {"format": "mooncake", "span_s": span_s, "rate_per_s": rate_per_s}
    return ScheduleFacts(**{**known, "instants": REQUESTS, "requests": REQUESTS, **changes})


def trace(rate_per_s: float = 100.0, reusable: float | None = None, **changes: Any) -> DataFacts:
    """What is reported of a trace that is sent at its own times."""
    return data(kind="trace", file="trace.jsonl", reusable=reusable, schedule=schedule(rate_per_s, **changes))


def data(kind: str = "sharegpt", reusable: float | None = None, **changes: Any) -> DataFacts:
    """What is reported of a file; `reusable` is the share of its prompt tokens that are shared."""
    known: dict[str, Any] = {
        "kind": kind,
        "file": "rows.jsonl",
        "file_digest": "0123456789abcdef",
        "rows": 2 * REQUESTS,
        "sent": REQUESTS,
        "input": lengths(),
        "output": lengths(OUTPUT, OUTPUT, OUTPUT),
        "reusable_tokens": None if reusable is None else round(reusable * REQUESTS * INPUT),
    }
    return DataFacts(**{**known, **changes})


def images(**changes: Any) -> ImageFacts:
    """What is reported of the images of a plan: one in each request."""
    known: dict[str, Any] = {
        "format": "jpeg", "sizes": ((64, 64, REQUESTS),), "counts": (1,), "distinct": REQUESTS,
        "mean_bytes": 2000, "digest": "0123456789abcdef",
    }  # fmt: skip
    return ImageFacts(**{**known, **changes})
