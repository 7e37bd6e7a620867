"""Answer checks: the server runs fewer requests than are sent, or its answers report other figures."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.base.rule import Evidence, joined, suspect
from loadgen.verdict import answer_timings
from loadgen.verdict.answer_timings import AnswerTimings
from loadgen.verdict.evidence import RunEvidence, percent

COUNTS_OFF, EARLY = 0.005, 0.01  # of the requests
DELAYED_SHARE, DELAYED_MS = 0.02, 1.0  # of the time from the first to the last token, both exceeded


@suspect(
    "few-slots",
    "closed loop: the server reports fewer slots than requests are kept under way (--max-concurrency): the "
    "others wait in its queue for a slot",
    "start it with more slots (--max-running; llama-server: --parallel N, and N times the --ctx-size), or "
    "lower --max-concurrency",
)
def few_slots(run: RunEvidence) -> Evidence | None:
    """Requests waited for a slot for as long as the load was held."""
    slots = run.facts.server.slots
    if not slots or not run.closed_loop or run.target <= slots:
        return None
    what = f"the server has {slots} slots for {run.target} requests at once: TTFT includes their queue"
    timings = answer_timings.of(run.records, run.metrics.streamed)
    if timings is None or not timings.ttft_ms > timings.prefill_ms:
        return what
    return f"{what} ({timings.waited_ms:.4g} of {timings.ttft_ms:.4g} ms in the mean)"


@suspect(
    "timings-differ",
    "what answers report of their own request (llama.cpp's `timings`) is not what the client has: another "
    f"count of tokens than `usage` in more than {percent(COUNTS_OFF)} of them, a first token sooner than its "
    f"prompt was computed in more than {percent(EARLY)}, or a mean time from the first to the last token "
    f"that is longer by over {percent(DELAYED_SHARE)} and {DELAYED_MS:g} ms; on one machine these agree to "
    "0.2 %",
    "measure on the server's own machine: what lies between delays messages, or answers for another server",
)
def timings_differ(run: RunEvidence) -> Evidence | None:
    """Client and server disagree on the same requests."""
    timings = answer_timings.of(run.records, run.metrics.streamed)
    return None if timings is None else joined(_apart(timings))


def _apart(timings: AnswerTimings) -> Iterator[Evidence]:
    for pair in timings.counts:
        if pair.differing > COUNTS_OFF * pair.requests:
            yield (
                f"{pair.name} tokens differ in {pair.differing} of {pair.requests} answers: "
                f"{pair.client} by usage, {pair.server} by timings"
            )
    if timings.early > EARLY * timings.requests:
        yield (
            f"{timings.early} of {timings.requests} first tokens came before the server had computed their "
            f"prompts (mean TTFT {timings.ttft_ms:.4g} ms, prompts {timings.prefill_ms:.4g} ms)"
        )
    longer_ms = timings.decode_ms - timings.server_decode_ms
    if longer_ms > max(DELAYED_MS, DELAYED_SHARE * timings.server_decode_ms):
        yield (
            f"from the first to the last token {timings.decode_ms:.4g} ms in the mean, "
            f"{timings.server_decode_ms:.4g} ms by the server: messages are delayed on their way"
        )
