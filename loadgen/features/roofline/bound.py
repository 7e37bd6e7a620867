"""Bound: a run's figures compared with its ceiling: impossible, or far too slow; docs/roofline.md."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from loadgen.base import parsing
from loadgen.base.rule import Evidence, Source, suspect
from loadgen.facts.ceiling import Ceiling
from loadgen.facts.run_facts import Facts
from loadgen.features.roofline.roofline_settings import LEAST_MS, SLOW, TOLERANCE
from loadgen.figures.figure_table import DEFAULT_METRICS
from loadgen.figures.metrics import DECODING, PREFILL, Figures, Metrics, list_figures
from loadgen.verdict.evidence import RunEvidence, expected_reuse, limit_doubts, percent

_CHUNK = 2048  # tokens of a prompt that an engine computes in one step, at least
SEVERAL = 1.2  # mean gap ÷ mean time per token, above which messages carry several tokens
_MIXED = 0.5  # of the steps, with a prompt in them: then the median one has one
_PREFILLED = 0.05  # of a request's time, at best: then its tokens per second are no longer those of decoding
_GIGA, _TERA = 1e9, 1e12
# The figures that give the time of a step, the best first; only the median gap can be free of prefill.
_STEPS, _GAPS = ("mean_tpot_ms", "median_tpot_ms", "median_itl_ms"), ("median_itl_ms", "mean_itl_ms")
_SPEEDS = ("output_throughput", "speed_tok_s")
# Tokens that one pass over the weights gives with a draft, our key, then vLLM's and SGLang's.
ACCEPTANCE = ("acceptance_length", "spec_decode_acceptance_length", "accept_length")


class Loaded(Protocol):
    """A load with mean lengths and concurrency, such as `loadgen.report.load_identity.Load`."""

    @property
    def input_len(self) -> float | None: ...
    @property
    def output_len(self) -> float | None: ...
    @property
    def max_concurrency(self) -> int | None: ...


class Lengths(msgspec.Struct, frozen=True):
    """The mean lengths and the concurrency that a bound depends on."""

    input_len: float | None = None
    output_len: float | None = None
    max_concurrency: int | None = None


class Decode(msgspec.Struct, frozen=True):
    """A decoding step that gives each request `per_step` tokens: its time as measured and at best."""

    tpot_ms: float
    key: str  # of the figure that the time is from: mean_tpot_ms, median_itl_ms, output_throughput
    least_ms: float
    share: float  # of the roofline: least ÷ measured
    effective_bytes_per_s: float  # read in the measured time
    batch: float  # requests that decode at once, on average
    context: float  # tokens of each, in the middle of its answer
    per_step: float = 1.0  # tokens of a request: the acceptance length of a draft

    @property
    def step_ms(self) -> float:
        """The time of a step in ms, for all the tokens that it gives a request."""
        return self.tpot_ms * self.per_step

    @property
    def best_tps(self) -> float:
        """The tok/s of all requests that decode, were each step as short as it can be."""
        return self.batch * self.per_step * 1e3 / self.least_ms

    @property
    def reached_tps(self) -> float:
        """The tok/s of all requests that decode, as measured."""
        return self.batch * 1e3 / self.tpot_ms

    @property
    def by(self) -> str:
        """The figure the time is derived from: mean TPOT, median ITL, tokens per second."""
        if self.key in _SPEEDS:
            return "tokens per second"
        statistic, name, _ = self.key.split("_")
        return f"{statistic} {name.upper()}"


class Prefill(msgspec.Struct, frozen=True):
    """A prompt's arithmetic and the time it took; `share` of the peak is None if the peak is unknown."""

    tokens: float
    spent_ms: float
    by: str  # what the time is: mean TTFT, prefill tokens per second
    flop: float
    flop_per_s: float
    least_ms: float | None
    share: float | None


class Excess(msgspec.Struct, frozen=True):
    """By what factor figures exceed what the machine can do (1: all of it), and which figures."""

    times: float
    text: str


def find_accepted_tokens(figures: Figures) -> float:
    """Return the tokens that a pass over the weights gives a request: a draft's acceptance length, or 1."""
    lengths = (parsing.read_figure(figures.get(key)) for key in ACCEPTANCE)
    return max(1.0, next((float(length) for length in lengths if length is not None), 1.0))


class _Run(msgspec.Struct, frozen=True):
    """A run's figures and load, and quantities derived from both; tokens are means per request."""

    figures: Figures
    load: Loaded

    def number(self, key: str) -> float | None:
        """Return a figure if it is above 0; else None."""
        value = parsing.read_figure(self.figures.get(key))
        return float(value) if value is not None and value > 0 else None

    def step(self, by_itl: bool) -> tuple[str, float] | None:
        """Return (figure, ms) of the first that times a token: TPOT, ITL if `by_itl`, a speed; else None."""
        timed = ((key, time_ms) for key in (_GAPS if by_itl else _STEPS) if (time_ms := self.number(key)))
        speeds = ((key, 1e3 / speed) for key in _SPEEDS if self.alone and (speed := self.number(key)))
        return next(chain(timed, speeds), None)

    @property
    def alone(self) -> bool:
        """Whether each request had the server to itself: a concurrency of 1, one request, or a ladder's."""
        if self.load.max_concurrency is not None:
            return self.load.max_concurrency == 1
        return self.number("completed") == 1 or "speed_tok_s" in self.figures

    @property
    def batch(self) -> float:
        """The mean number of requests decoding at once; 1 if unknown, which bounds from below."""
        rate, tpot_ms = self.number("request_throughput"), self.number("mean_tpot_ms")
        tokens_per_s = self.number(DECODING) or (rate or 0.0) * max(self.answer - 1, 0.0)
        if self.alone or not tokens_per_s or not tpot_ms:
            return 1.0
        decoding = tokens_per_s * tpot_ms / 1e3
        return max(1.0, min(decoding, float(self.load.max_concurrency or decoding)))

    @property
    def prefilled(self) -> tuple[float, str] | None:
        """The time (ms) of one prompt's prefill, and the figure it comes from; None if none has it alone.

        Of several prompts at once it is the share of one, by their speed; TTFT is it only of one at a time.
        """
        if (speed := self.number(PREFILL)) is not None:
            return 1e3 * self.prompt / speed, "prefill tokens per second"
        names = ("mean_ttft_ms", "median_ttft_ms") if self.alone else ()
        timed = ((name, time_ms) for name in names if (time_ms := self.number(name)) is not None)
        return next(((time_ms, f"{name.partition('_')[0]} TTFT") for name, time_ms in timed), None)

    @property
    def context(self) -> float:
        """The tokens of a request in the middle of its answer."""
        return self.prompt + self.answer / 2

    @property
    def prompt(self) -> float:
        """The mean tokens of a prompt: the load's own length, else by the totals; 0 if unknown."""
        return self._find_length(self.load.input_len, "total_input_tokens")

    @property
    def answer(self) -> float:
        """The mean tokens of an answer: the load's own length, else by the totals; 0 if unknown."""
        return self._find_length(self.load.output_len, "total_output_tokens")

    def _find_length(self, tokens: float | None, total: str) -> float:
        if tokens is not None:
            return tokens
        completed = self.number("completed")
        return (self.number(total) or 0.0) / completed if completed else 0.0

    @property
    def gap_is_a_step(self) -> bool:
        """Whether the median gap is a step without prefill: one token a message, few steps with prompts."""
        gap_ms, tpot_ms = self.number("mean_itl_ms"), self.number("mean_tpot_ms")
        if (
            not gap_ms
            or not tpot_ms
            or gap_ms > SEVERAL * tpot_ms * find_accepted_tokens(self.figures)
            or not self.answer
        ):
            return False
        return self.batch * max(1.0, self.prompt / _CHUNK) / self.answer < _MIXED


def compare_decode(
    ceiling: Ceiling, figures: Figures, load: Loaded, *, by_itl: bool = False
) -> Decode | None:
    """Compare decoding with its bound; None if the figures lack the time of a token.

    At concurrency 1 a step is the mean TPOT, else the median ITL, else one over the tokens per second (with
    prefill in it, so that nothing appears faster than it is). At a higher one the batch is how many requests
    decode on average, by Little's law: requests per second × TPOT × (tokens − 1); the mean TPOT then holds
    others' prefill, the median ITL (`by_itl`) does not where most steps have none. Context: prompt + half of
    the answer. Where a draft's acceptance length is reported, a step gives so many tokens, and a gap between
    messages is a step as it is.
    """
    run = _Run(figures, load)
    if (step := run.step(by_itl)) is None:
        return None
    key, tpot_ms = step
    per_step = 1.0 if key in _GAPS else find_accepted_tokens(figures)
    least_ms = ceiling.tpot_ms(run.batch, run.context)
    return Decode(
        tpot_ms=tpot_ms,
        key=key,
        least_ms=least_ms,
        share=least_ms / (tpot_ms * per_step),
        effective_bytes_per_s=ceiling.step_bytes(run.batch, run.context) / (tpot_ms * per_step) * 1e3,
        batch=run.batch,
        context=run.context,
        per_step=per_step,
    )


def compare_prefill(ceiling: Ceiling, figures: Figures, load: Loaded) -> Prefill | None:
    """Compare a prompt's FLOP/s with the machine's peak, by prefill speed, else TTFT.

    None where no length is known, and of TTFT above concurrency 1: it then has a queue.
    """
    run = _Run(figures, load)
    tokens, prefilled = run.prompt, run.prefilled
    if not tokens or prefilled is None:
        return None
    spent_ms, by = prefilled
    flop, least_ms = ceiling.prefill_flop(tokens), ceiling.prefill_ms(tokens)
    share = None if least_ms is None else least_ms / spent_ms
    return Prefill(tokens, spent_ms, by, flop, 1e3 * flop / spent_ms, least_ms, share)


def explain_impossible(
    ceiling: Ceiling, figures: Figures, load: Loaded, *, speculative: bool = False
) -> str | None:
    """Return which figures are over 5 % faster than the machine can be, in words; None if none is.

    A server known to be speculative reads its weights once for several tokens: its decoding is not judged.
    """
    decoded = None if speculative else measure_decode_excess(ceiling, figures, load)
    excesses = (decoded, measure_prefill_excess(ceiling, figures, load))
    return "; ".join(excess.text for excess in excesses if excess and excess.times > TOLERANCE) or None


def measure_decode_excess(ceiling: Ceiling, figures: Figures, load: Loaded) -> Excess | None:
    """Compute by what factor decoding would read more bytes than the memory bus carries; None: unknown.

    Of a mixture's experts those of one token are counted, however many requests there are: routing need not
    be even.
    """
    step = compare_decode(ceiling, figures, load)
    if step is None:
        return None
    machine, weights = ceiling.machine, ceiling.weight_bytes()
    bus = machine.bandwidth_bytes_per_s
    cached = step.batch * ceiling.weights.kv_bytes(step.context)
    alone, whole = (1e3 * size / step.step_ms / bus for size in (weights, weights + cached))
    text = (
        f"{_format_step(step)}: reading {_format_giga(weights)} GB of weights in that time "
        f"takes {_format_giga(alone * bus)} GB/s, {_format_times(alone)} the {_format_giga(bus)} of "
        f"{machine.name}"
    )
    if cached:
        text += f", {_format_times(whole)} with {_format_giga(cached)} GB of KV cache"
    return Excess(whole, text)


def measure_prefill_excess(ceiling: Ceiling, figures: Figures, load: Loaded) -> Excess | None:
    """Compute by what factor prefill would exceed the machine's peak FLOP/s; None: unknown."""
    prompt, peak = compare_prefill(ceiling, figures, load), ceiling.peak_flop_per_s
    if prompt is None or prompt.share is None or peak is None:
        return None
    text = (
        f"{prompt.tokens:.0f} tokens prefilled in {prompt.spent_ms:.4g} ms: "
        f"{_format_digits(prompt.flop / _TERA)} TFLOP in that time are "
        f"{_format_digits(prompt.flop_per_s / _TERA)} TFLOP/s, {_format_times(prompt.share)} the "
        f"{_format_digits(peak / _TERA)} of {ceiling.machine.name} in {ceiling.weights.computes}"
    )
    return Excess(prompt.share, text)


def explain_fallback(ceiling: Ceiling, figures: Figures, load: Loaded) -> str | None:
    """Explain which figure is so slow that a fallback kernel is likely; None if none is.

    Judged at concurrency 1 by TPOT, else by the median ITL if most steps have no prefill; never if a step
    takes less than 5 ms at best: launching kernels takes milliseconds too.
    """
    run = _Run(figures, load)
    if not run.alone and not run.gap_is_a_step:
        return None
    step = compare_decode(ceiling, figures, load, by_itl=not run.alone)
    if step is None or step.least_ms < LEAST_MS or step.share >= SLOW:
        return None
    if step.key in _SPEEDS:  # only where prefill takes, at best, 5 % of a request's decoding or less
        prefill_ms = ceiling.prefill_ms(run.prompt) if run.prompt else 0.0
        if prefill_ms is None:
            mostly_decodes = run.prompt <= _PREFILLED * run.answer
        else:
            mostly_decodes = prefill_ms <= _PREFILLED * step.tpot_ms * max(run.answer, 1.0)
        if not mostly_decodes:
            return None
    bus, read = ceiling.machine.bandwidth_bytes_per_s, ceiling.step_bytes(step.batch, step.context)
    return (
        f"{_format_step(step)} is {_format_percent(step.share)} of the roofline: "
        f"{step.least_ms:.3g} ms for {_format_giga(read)} GB at {_format_giga(bus)} GB/s; effective "
        f"bandwidth {_format_giga(step.effective_bytes_per_s)} GB/s"
    )


def render_lines(ceiling: Ceiling, figures: Figures, load: Loaded) -> list[str]:
    """Return lines, not wrapped, on decoding, prefill and the source of the bytes; [] if neither is known."""
    step, prompt = compare_decode(ceiling, figures, load), compare_prefill(ceiling, figures, load)
    text = [] if step is None else [_render_decoding(ceiling, step)]
    text += [] if prompt is None else [_render_prefill(ceiling, prompt)]
    return [*text, f"weights: {ceiling.weights.how}"] if text else []


def _render_decoding(ceiling: Ceiling, step: Decode) -> str:
    machine, size = ceiling.machine, _format_giga(ceiling.step_bytes(step.batch, step.context))
    read = f"{size} GB a token" if step.batch == 1 else f"{size} GB a step of {step.batch:.3g} requests"
    mixed = "; includes the prefill of other requests" if step.batch > 1 and "tpot" in step.key else ""
    drafted = f", {step.per_step:.3g} tokens a pass" if step.per_step > 1 else ""
    return (
        f"roofline: {_format_digits(step.best_tps)} tok/s at best ({read}, {machine.name} at "
        f"{_format_giga(machine.bandwidth_bytes_per_s)} GB/s{drafted}); reached "
        f"{_format_digits(step.reached_tps)} tok/s "
        f"({step.by}), {_format_percent(step.share)}, {_format_giga(step.effective_bytes_per_s)} GB/s{mixed}"
    )


def _render_prefill(ceiling: Ceiling, prompt: Prefill) -> str:
    text = (
        f"prefill: {_format_digits(prompt.flop / _TERA)} TFLOP in {prompt.spent_ms:.4g} ms ({prompt.by}), "
        f"{_format_digits(prompt.flop_per_s / _TERA)} TFLOP/s"
    )
    peak = ceiling.peak_flop_per_s
    if peak is None or prompt.share is None:
        return f"{text}; the machine's peak is unknown"
    return (
        f"{text} of {_format_digits(peak / _TERA)} ({ceiling.weights.computes}), "
        f"{_format_percent(prompt.share)}"
    )


def _format_step(step: Decode) -> str:
    text = f"{step.tpot_ms:.4g} ms per token ({step.by})"
    if step.per_step == 1:
        return text
    return f"{text}, {step.step_ms:.4g} ms per pass of {step.per_step:.3g} tokens (acceptance length)"


def _format_giga(size: float) -> str:
    return _format_digits(size / _GIGA)


def _format_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _format_times(ratio: float) -> str:
    return f"{ratio:.1f} ×" if ratio >= 2 else f"{ratio:.2f} ×"


def _format_percent(share: float) -> str:
    return f"{_format_digits(100 * share)} %"


_HARDLY = 0.01  # of the prompt tokens: pieces of one text may begin alike


def list_bound_figures(facts: Facts, metrics: Metrics) -> tuple[dict[str, Any], Lengths]:
    """Return a run's figures under vLLM's keys, and its mean lengths, for comparison with the roofline.

    TTFT is left out where prompts share over 1 % of their tokens, or an unknown part. Of a server that
    speculates the acceptance length is among them.
    """
    shared = expected_reuse(facts)
    selected = DEFAULT_METRICS if shared is not None and shared <= _HARDLY else DEFAULT_METRICS[1:]
    completed = max(metrics.completed, 1)
    load = Lengths(
        input_len=metrics.total_input_tokens / max(metrics.completed - metrics.unknown_inputs, 1),
        output_len=metrics.total_output_tokens / completed,
        max_concurrency=facts.profile.max_concurrency,
    )
    figures = list_figures(metrics, replace(facts.block(), selected=selected))
    tokens, window = metrics.total_output_tokens - metrics.completed, facts.own_window
    if facts.speculates and tokens > 0:
        # T − accepted of T tokens after the first had their own step; without counters, each message.
        accepted = None if window is None else window.accepted_tokens
        steps = metrics.itl.n if accepted is None else tokens - accepted
        if steps > 0:
            figures["acceptance_length"] = tokens / steps
    return figures, load


@suspect(
    "beyond-roofline",
    f"over {percent(TOLERANCE)} of the roofline (good kernels reach 90 %): by TPOT, with speculative "
    "decoding times the acceptance length, or at concurrency 1 by TTFT and the peak FLOP/s of the data type",
    "check for speculative decoding, a prefix cache or another model, and that --hardware is right",
    Source.ROOFLINE,
)
def beyond_roofline(run: RunEvidence) -> Evidence | None:
    """Find evidence that decoding or prefill was over 5 % faster than the machine allows.

    Decoding of a speculative engine whose acceptance length is unknown is not judged; None without a ceiling.
    """
    ceiling = run.facts.ceiling
    if ceiling is None:
        return None
    figures, load = list_bound_figures(run.facts, run.metrics)
    speculative = run.facts.speculates and "acceptance_length" not in figures
    return explain_impossible(ceiling, figures, load, speculative=speculative)


@suspect(
    "slow-kernel",
    f"under {percent(SLOW)} of the roofline, by TPOT at concurrency 1, else by median ITL if few "
    f"steps prefill; not judged where a step takes under {LEAST_MS:.0f} ms at best: healthy small "
    "models reach 12 to 27 %",
    "check the server's log for a fallback kernel or eager mode, and that --hardware is right",
    Source.ROOFLINE,
)
def slow_kernel(run: RunEvidence) -> Evidence | None:
    """Find evidence that decoding reached under 30 % of the roofline, so that a fallback kernel is likely.

    None without a ceiling, or where a step takes under 5 ms at best.
    """
    ceiling = run.facts.ceiling
    if ceiling is None:
        return None
    return explain_fallback(ceiling, *list_bound_figures(run.facts, run.metrics))


limit = partial(limit_doubts, ("ceiling",))
