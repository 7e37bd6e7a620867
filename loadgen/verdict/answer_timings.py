"""Answer timings: what each answer reports of its own request (llama.cpp's `timings`), next to the client's.

The server's clock runs from when a slot takes the prompt up to the first token, and from there to the last
one: what the client waited longer before the first token was a queue, and what is outside the server.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.figures.record import Records

MS_NS = 1e6
EARLY_MS, EARLY_SHARE = 1.0, 0.02  # of a prompt's time: both clocks tick in microseconds
_COUNTS = {
    "prompt": ("input_tokens", ("server_prompt_tokens", "server_cached_tokens")),
    "cached": ("cached_tokens", ("server_cached_tokens",)),
    "output": ("output_tokens", ("server_output_tokens",)),
}


class CountPair(msgspec.Struct, frozen=True):
    """A count by usage and by timings, over the requests that have both, and in how many they differ."""

    name: str
    client: int
    server: int
    requests: int
    differing: int


class AnswerTimings(msgspec.Struct, frozen=True):
    """Means over the successful requests that report timings; NaN of nothing."""

    requests: int
    counts: tuple[CountPair, ...]
    ttft_ms: float
    prefill_ms: float
    early: int  # requests whose first token came sooner than the server had computed their prompt
    decode_ms: float  # first → last token, of requests with several
    server_decode_ms: float
    decoded: int  # requests

    @property
    def waited_ms(self) -> float:
        """What of the mean TTFT was outside the computation of the prompt: queue, HTTP and network."""
        return self.ttft_ms - self.prefill_ms


def of(records: Records, streamed: bool = True) -> AnswerTimings | None:
    """The timings of a run; None where its answers report none."""
    timed = records.ok & (records.server_prefill_ns >= 0)
    if not timed.any():
        return None
    each = PerRequest.of(records, MetricOptions(streamed=streamed))
    begun = timed & each.has_ttft
    prefill_ns, ttft_ns = records.server_prefill_ns, each.ttft_ns
    slack_ns = np.maximum(EARLY_MS * MS_NS, EARLY_SHARE * prefill_ns)
    several = begun & (records.server_decode_ns >= 0) & (each.output_tokens > 1)
    return AnswerTimings(
        requests=int(timed.sum()),
        counts=tuple(_counts(records, timed)),
        ttft_ms=_mean_ms(ttft_ns[begun]),
        prefill_ms=_mean_ms(prefill_ns[begun]),
        early=int((begun & (ttft_ns < prefill_ns - slack_ns)).sum()),
        decode_ms=_mean_ms((each.last_ns - each.first_ns)[several]),
        server_decode_ms=_mean_ms(records.server_decode_ns[several]),
        decoded=int(several.sum()),
    )


def figures(records: Records, streamed: bool = True) -> Iterator[tuple[str, str, float, float]]:
    """Each figure with its unit, the client's and the server's."""
    if (found := of(records, streamed)) is None:
        return
    for pair in found.counts:
        yield f"{pair.name} tokens by answer", "", pair.client, pair.server
    yield "TTFT, prompt by answer", "ms", found.ttft_ms, found.prefill_ms
    yield "first to last, by answer", "ms", found.decode_ms, found.server_decode_ms


def _counts(records: Records, timed: Bool) -> Iterator[CountPair]:
    """Counts by usage alone are compared: what the client counts itself is another figure."""
    for name, (ours, parts) in _COUNTS.items():
        client, theirs = getattr(records, ours), [getattr(records, part) for part in parts]
        known = timed & (records.usage > 0) & (client >= 0)
        for column in theirs:
            known &= column >= 0
        server: Int64 = np.sum(theirs, axis=0)
        if known.any():
            apart = int((client != server)[known].sum())
            yield CountPair(name, int(client[known].sum()), int(server[known].sum()), int(known.sum()), apart)


def _mean_ms(values_ns: Int64) -> float:
    return float(values_ns.mean()) / MS_NS if len(values_ns) else float("nan")
