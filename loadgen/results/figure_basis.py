"""Figure basis: what counts and percentiles rest on, in lines under the block."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.metrics.metrics import Metrics


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
        several = f"messages: in {spread} requests some carry several tokens"
        yield f"{several}; ITL is per message, TPOT per token{exactly}"
