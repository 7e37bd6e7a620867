"""Figure basis: what counts and percentiles rest on, in lines under the block."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from loadgen.base.text import format_count
from loadgen.figures.figure_table import SELECTABLE, percentile_name
from loadgen.figures.metrics import Metrics
from loadgen.verdict.evidence import least_samples


def reasoning_lines(shown: int, hidden: int, every: int) -> Iterator[str]:
    """What the first token of N responses was, where some have reasoning: in `shown` that, else visible."""
    if shown:
        yield f"TTFT: to the first token of any kind; in {shown} of {every} responses that is reasoning"
    if hidden:
        yield (
            f"TTFT: includes reasoning that is counted in usage and not streamed, in {hidden} of {every} "
            "responses"
        )


def token_lines(metrics: Metrics, tokenizer: str) -> Iterator[str]:
    """How the tokens of the answers were counted, `tokenizer` being the directory of the one that counted."""
    unknown = "messages were counted instead" if metrics.streamed else "their tokens count 0"
    ways = (
        (metrics.counted_by_usage, "as reported by the server in usage"),
        (
            metrics.counted_by_tokenizer,
            f"no usage: counted from the text, without special tokens, by the tokenizer in {tokenizer}",
        ),
        (metrics.uncounted, f"no usage: {unknown}"),
        (
            metrics.counted_by_messages - metrics.uncounted,
            "no usage: messages of one token each were counted",
        ),
    )
    every = metrics.completed
    parts = [way if n == every else f"{n} of {every} responses: {way}" for n, way in ways if n > 0]
    if parts:
        yield f"tokens: {'; '.join(parts)}"
    spread = metrics.completed - metrics.exact_tokens - metrics.counted_by_messages
    if spread > 0 and metrics.streamed:
        exactly = " (--continuous-usage counts them one by one)" * (metrics.counted_by_usage > 0)
        several = f"messages: in {format_count(spread, 'request')} some carry several tokens"
        yield f"{several}; ITL is per message, TPOT per token{exactly}"


def percentile_lines(metrics: Metrics, selected: Collection[str]) -> Iterator[str]:
    """From how many samples the percentiles of these metrics are, where they are too few for a bound at 99 %.

    Gaps are many more than requests: they are named only where none is expected beyond the percentile.
    """
    shown = {key: latency for key, latency in metrics.selectable.items() if key in selected}
    thin: dict[tuple[float, int, str], list[str]] = {}
    for key, latency in shown.items():
        unit = SELECTABLE[key].of
        for percentile in latency.percentiles_ms:
            if 0 < latency.n < least_samples(percentile)[unit == "requests"]:
                thin.setdefault((percentile, latency.n, unit), []).append(key.upper())
    of_requests = [key for key, latency in shown.items() if latency.n and SELECTABLE[key].of == "requests"]
    parts = [
        _basis(*basis, () if len(names) == len(of_requests) and basis[2] == "requests" else names)
        for basis, names in thin.items()
    ]
    if parts:
        yield f"percentiles: {'; '.join(parts)}"


def _basis(percentile: float, n: int, unit: str, names: Sequence[str]) -> str:
    """One percentile, of these metrics, and how many of its samples lie beyond it."""
    of = f" of {', '.join(names)}" if names else ""
    q, last = max(percentile, 100 - percentile) / 100, n - 1
    beyond = last - math.floor(round(last * q, 6))  # linear between the closest ranks
    extreme = "slowest" if percentile >= 50 else "fastest"
    if n == 1:
        return f"P{percentile_name(percentile)}{of} from 1 of the {unit}"
    where = f"{beyond} beyond it" if n >= least_samples(percentile)[0] else f"next to the {extreme}"
    return f"P{percentile_name(percentile)}{of} from {n} {unit} ({where})"
