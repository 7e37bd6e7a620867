"""Bound: a run's figures beside its ceiling, and what cannot be or should not be; docs/roofline.md."""

from __future__ import annotations

from typing import Protocol

import msgspec

from loadgen.metrics.vllm_keys import Figures
from loadgen.roofline.ceiling import Ceiling
from loadgen.roofline.estimate import ceiling

__all__ = [
    "Decode",
    "Lengths",
    "Loaded",
    "Prefill",
    "ceiling",
    "decode",
    "fallback",
    "impossible",
    "lines",
    "prefill",
]

# A nominal bandwidth is clock × width, and reads reach 90 % of it at most; what is allowed beyond it is for
# printed figures that are rounded, and for what a config does not tell of a checkpoint's bytes.
TOLERANCE = 1.05
SLOW, LEAST_MS = 0.3, 5.0  # below so much of the roofline, and only where a step takes so long at best
_CHUNK = 2048  # tokens of a prompt that an engine computes in one step, at least
_SEVERAL = 1.2  # mean gap ÷ mean time per token, above which messages carry several tokens
_MIXED = 0.5  # of the steps, with a prompt in them: then the median one has one
_PREFILLED = 0.05  # of a request's time, at best: then its tokens per second are no longer those of decoding
_SPEED = "tokens per second"
_GIGA, _TERA = 1e9, 1e12


class Loaded(Protocol):
    """What was asked of the server; `loadgen.analysis.run_summary.Load` is one."""

    @property
    def input_len(self) -> float | None:
        """Tokens of a prompt, mean."""

    @property
    def output_len(self) -> float | None:
        """Tokens of an answer, mean."""

    @property
    def max_concurrency(self) -> int | None:
        """Requests under way at most."""


class Lengths(msgspec.Struct, frozen=True):
    """The least of a load that a bound is taken at."""

    input_len: float | None = None
    output_len: float | None = None
    max_concurrency: int | None = None


class Decode(msgspec.Struct, frozen=True):
    """A step that gives a token to each request in it, as it was and at best."""

    tpot_ms: float
    by: str  # what the time is: mean TPOT, median ITL, tokens per second
    least_ms: float
    share: float  # of the roofline: least ÷ measured
    effective_bytes_per_s: float  # read in the measured time
    batch: float  # requests that decode at once, on average
    context: float  # tokens of each, in the middle of its answer


class Prefill(msgspec.Struct, frozen=True):
    """A prompt's arithmetic in the time to its first token; None where the machine's peak is not known."""

    tokens: float
    ttft_ms: float
    flop: float
    flop_per_s: float
    least_ms: float | None
    share: float | None


def decode(ceiling: Ceiling, figures: Figures, load: Loaded, *, by_itl: bool = False) -> Decode | None:
    """Decoding beside its bound; None where the figures do not tell the time of a token.

    At concurrency 1 a step is the mean TPOT, else the median ITL, else one over the tokens per second (with
    prefill in it, so that nothing looks faster than it is). At a higher one the batch is how many requests
    decode on average, by Little's law: requests per second × TPOT × (tokens − 1); the mean TPOT then holds
    others' prefill, the median ITL (`by_itl`) does not where most steps have none. Context: prompt + half of
    the answer.
    """
    measured = _step(figures, _alone(figures, load), by_itl)
    if measured is None:
        return None
    tpot_ms, by = measured
    batch, context = _batch(figures, load), _context(figures, load)
    least_ms = ceiling.tpot_ms(batch, context)
    return Decode(
        tpot_ms=tpot_ms,
        by=by,
        least_ms=least_ms,
        share=least_ms / tpot_ms,
        effective_bytes_per_s=ceiling.bandwidth_bytes_per_s(tpot_ms, batch, context),
        batch=batch,
        context=context,
    )


def prefill(ceiling: Ceiling, figures: Figures, load: Loaded) -> Prefill | None:
    """A prompt's arithmetic beside the machine's peak; None but at concurrency 1: else TTFT holds a queue."""
    tokens = _prompt(figures, load)
    ttft_ms = _number(figures, "mean_ttft_ms") or _number(figures, "median_ttft_ms")
    if not _alone(figures, load) or not tokens or not ttft_ms:
        return None
    flop, least_ms = ceiling.prefill_flop(tokens), ceiling.prefill_ms(tokens)
    share = None if least_ms is None else least_ms / ttft_ms
    return Prefill(tokens, ttft_ms, flop, 1e3 * flop / ttft_ms, least_ms, share)


def impossible(ceiling: Ceiling, figures: Figures, load: Loaded, *, speculative: bool = False) -> str:
    """What is faster than the machine can be, with its figures; "" where nothing is.

    Of a mixture's experts those of one token are counted, however many requests there are: routing need not
    be even. A server known to be speculative reads its weights once for several tokens: its decoding is not
    judged.
    """
    decoded = "" if speculative else _impossible_decode(ceiling, figures, load)
    return "; ".join(filter(None, (decoded, _impossible_prefill(ceiling, figures, load))))


def fallback(ceiling: Ceiling, figures: Figures, load: Loaded) -> str:
    """What is so far below the roofline that another kernel ran than is meant, with its figures; else "".

    Judged at concurrency 1 by TPOT, else by the median ITL where most steps have no prefill in them; never
    where a step takes less than 5 ms at best: launching kernels takes milliseconds too.
    """
    alone = _alone(figures, load)
    if not alone and not _itl_is_a_step(figures, load):
        return ""
    found = decode(ceiling, figures, load, by_itl=not alone)
    if found is None or found.least_ms < LEAST_MS or found.share >= SLOW:
        return ""
    if found.by == _SPEED and not _decodes_mostly(ceiling, found.tpot_ms, figures, load):
        return ""
    bus, read = ceiling.machine.bandwidth_bytes_per_s, ceiling.step_bytes(found.batch, found.context)
    return (
        f"{found.tpot_ms:.4g} ms a token ({found.by}) is {_percent(found.share)} of the roofline: "
        f"{found.least_ms:.3g} ms for {_giga(read)} GB at {_giga(bus)} GB/s; it read "
        f"{_giga(found.effective_bytes_per_s)} GB/s"
    )


def lines(ceiling: Ceiling, figures: Figures, load: Loaded) -> list[str]:
    """The roofline as a report has it: decoding, prefill, and where the bytes are from; to be wrapped."""
    step, prompt = decode(ceiling, figures, load), prefill(ceiling, figures, load)
    said = [] if step is None else [_decoding(ceiling, step)]
    said += [] if prompt is None else [_prefilling(ceiling, prompt)]
    return [*said, f"weights: {ceiling.weights.how}"] if said else []


def _decoding(ceiling: Ceiling, step: Decode) -> str:
    machine, size = ceiling.machine, _giga(ceiling.step_bytes(step.batch, step.context))
    read = f"{size} GB a token" if step.batch == 1 else f"{size} GB a step of {step.batch:.3g} requests"
    mixed = "; others' prefill is in it" if step.batch > 1 and step.by.endswith("TPOT") else ""
    best, reached = step.batch * 1e3 / step.least_ms, step.batch * 1e3 / step.tpot_ms
    return (
        f"roofline: {_digits(best)} tok/s at best ({read}, {machine.name} at "
        f"{_giga(machine.bandwidth_bytes_per_s)} GB/s); reached {_digits(reached)} tok/s ({step.by}), "
        f"{_percent(step.share)}, {_giga(step.effective_bytes_per_s)} GB/s{mixed}"
    )


def _prefilling(ceiling: Ceiling, prompt: Prefill) -> str:
    said = (
        f"prefill: {_digits(prompt.flop / _TERA)} TFLOP in {prompt.ttft_ms:.4g} ms (mean TTFT), "
        f"{_digits(prompt.flop_per_s / _TERA)} TFLOP/s"
    )
    peak = ceiling.peak_flop_per_s
    if peak is None or prompt.share is None:
        return f"{said}; the machine's peak is not known"
    return f"{said} of {_digits(peak / _TERA)} ({ceiling.weights.computes}), {_percent(prompt.share)}"


def _impossible_decode(ceiling: Ceiling, figures: Figures, load: Loaded) -> str:
    found = decode(ceiling, figures, load)
    if found is None:
        return ""
    machine, weights = ceiling.machine, ceiling.weight_bytes()
    bus = machine.bandwidth_bytes_per_s
    cached = found.batch * ceiling.weights.kv_bytes(found.context)
    alone, whole = (1e3 * size / found.tpot_ms / bus for size in (weights, weights + cached))
    if whole <= TOLERANCE:
        return ""
    said = (
        f"{found.tpot_ms:.4g} ms a token ({found.by}): reading {_giga(weights)} GB of weights in that time "
        f"takes {_giga(alone * bus)} GB/s, {_times(alone)} the {_giga(bus)} of {machine.name}"
    )
    return f"{said}, {_times(whole)} with {_giga(cached)} GB of KV cache" if cached else said


def _impossible_prefill(ceiling: Ceiling, figures: Figures, load: Loaded) -> str:
    found, peak = prefill(ceiling, figures, load), ceiling.peak_flop_per_s
    if found is None or found.share is None or found.share <= TOLERANCE or peak is None:
        return ""
    return (
        f"{found.tokens:.0f} tokens prefilled in {found.ttft_ms:.4g} ms: {_digits(found.flop / _TERA)} TFLOP "
        f"in that time are {_digits(found.flop_per_s / _TERA)} TFLOP/s, {_times(found.share)} the "
        f"{_digits(peak / _TERA)} of {ceiling.machine.name} in {ceiling.weights.computes}"
    )


def _step(figures: Figures, alone: bool, by_itl: bool) -> tuple[float, str] | None:
    """The time of a step, and what it is; None where it is not told."""
    order = (
        ("median_itl_ms", "mean_itl_ms") if by_itl else ("mean_tpot_ms", "median_tpot_ms", "median_itl_ms")
    )
    for key in order:
        if time_ms := _number(figures, key):
            word, name, _ = key.split("_")
            return time_ms, f"{word} {name.upper()}"
    speed = _number(figures, "output_throughput") or _number(figures, "speed_tok_s")
    return (1e3 / speed, _SPEED) if speed and alone else None


def _alone(figures: Figures, load: Loaded) -> bool:
    """Whether a request had the server to itself."""
    if load.max_concurrency is not None:
        return load.max_concurrency == 1
    return _number(figures, "completed") == 1 or "speed_tok_s" in figures


def _batch(figures: Figures, load: Loaded) -> float:
    """Requests that decode at once on average; 1 where that is not told, which bounds from below."""
    rate, tpot = _number(figures, "request_throughput"), _number(figures, "mean_tpot_ms")
    answer = _answer(figures, load)
    if _alone(figures, load) or not rate or not tpot or not answer:
        return 1.0
    decoding = rate * tpot / 1e3 * (answer - 1)
    return max(1.0, min(decoding, float(load.max_concurrency or decoding)))


def _context(figures: Figures, load: Loaded) -> float:
    """Tokens of a request in the middle of its answer."""
    return _prompt(figures, load) + _answer(figures, load) / 2


def _prompt(figures: Figures, load: Loaded) -> float:
    return _length(load.input_len, figures, "total_input_tokens")


def _answer(figures: Figures, load: Loaded) -> float:
    return _length(load.output_len, figures, "total_output_tokens")


def _length(told: float | None, figures: Figures, total: str) -> float:
    """Mean tokens of a request, as told or from the run's totals; 0 where neither is there."""
    if told is not None:
        return told
    completed = _number(figures, "completed")
    return (_number(figures, total) or 0.0) / completed if completed else 0.0


def _itl_is_a_step(figures: Figures, load: Loaded) -> bool:
    """Whether the median gap is a step without prefill: messages of one token, few steps with prompts."""
    gap, tpot, answer = (
        _number(figures, "mean_itl_ms"),
        _number(figures, "mean_tpot_ms"),
        _answer(figures, load),
    )
    if not gap or not tpot or gap > _SEVERAL * tpot or not answer:
        return False
    return _batch(figures, load) * max(1.0, _prompt(figures, load) / _CHUNK) / answer < _MIXED


def _decodes_mostly(ceiling: Ceiling, per_token_ms: float, figures: Figures, load: Loaded) -> bool:
    """Whether a request's time is that of decoding, all but a little; by tokens where no peak is known."""
    tokens, answer = _prompt(figures, load), _answer(figures, load)
    least_ms = ceiling.prefill_ms(tokens) if tokens else 0.0
    if least_ms is None:
        return tokens <= _PREFILLED * answer
    return least_ms <= _PREFILLED * per_token_ms * max(answer, 1.0)


def _number(figures: Figures, key: str) -> float | None:
    value = figures.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        return None
    return float(value)


def _giga(size: float) -> str:
    return _digits(size / _GIGA)


def _digits(value: float) -> str:
    """Three digits, and all those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f} ×" if ratio >= 2 else f"{ratio:.2f} ×"


def _percent(share: float) -> str:
    return f"{_digits(100 * share)} %"
