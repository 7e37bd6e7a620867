"""Speed: tokens per second of one request, by either of the formulas that the Qwen pages publish.

The pages share a title and a unit, not a formula:

* `output/time`: Qwen2 and Qwen2.5 (examples/speed-benchmark in the Qwen repository);
* `(prompt+output)/time`: Qwen3 (docs/source/getting_started/speed_benchmark.md, under Notes).

Of one run they differ by (prompt+output)/output: with 2048 tokens generated, 4 times at an input of 6144,
16 times at 30720, 64 times at 129024. Time is that of the whole request in both, prefill included.
"""

from __future__ import annotations

from collections.abc import Callable

OUTPUT = "output/time"
TOTAL = "(prompt+output)/time"
UNKNOWN = "unknown"  # of a page that does not have it

Formula = Callable[[float, float, float], float]  # prompt tokens, output tokens, seconds → tokens/s

FORMULAS: dict[str, Formula] = {
    OUTPUT: lambda prompt_tokens, output_tokens, seconds: output_tokens / seconds,
    TOTAL: lambda prompt_tokens, output_tokens, seconds: (prompt_tokens + output_tokens) / seconds,
}


PAGES = {OUTPUT: "Qwen2 and Qwen2.5 pages", TOTAL: "Qwen3 pages"}  # that publish each as `Speed (tokens/s)`


def converted(speed_tok_s: float, source: str, target: str, prompt_tokens: int, output_tokens: int) -> float:
    """What one formula's speed is by another: the same request, the same seconds."""
    seconds = FORMULAS[source](prompt_tokens, output_tokens, 1.0) / speed_tok_s
    return FORMULAS[target](prompt_tokens, output_tokens, seconds)
