"""Figure lines: the report's lines below the block: bounds, objectives, token counts, more figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from msgspec.structs import asdict

from loadgen.base.text import format_count
from loadgen.figures.distribution import Distribution, find_least_passing
from loadgen.figures.figure_table import LATENCIES, OURS, OWN, SELECTABLE, SPEEDS, Figure, percentile_name
from loadgen.figures.metrics import Metrics
from loadgen.figures.objectives import ObjectiveEvidence
from loadgen.report.run_directory import Result
from loadgen.report.run_lines import name_tokenizer


def describe_bounds(result: Result, options: object) -> Iterator[str]:
    """Yield a line per percentile, with its upper bound if it has one, and why ITL has none."""
    shown = _select_shown(result)
    for rank in dict.fromkeys(rank for of in shown.values() for rank in of.percentiles_ms):
        yield _format_percentiles(shown, rank)
    if gaps := [SELECTABLE[key].label for key in shown if SELECTABLE[key].of != "requests"]:
        yield f"{', '.join(gaps)}: no bound, since the gaps of one answer are alike"


def describe_highest(result: Result, options: object) -> Iterator[str]:
    """Yield a line on the highest percentile, without gaps, which have no bound."""
    shown = {key: of for key, of in _select_shown(result).items() if SELECTABLE[key].of == "requests"}
    if ranks := [rank for of in shown.values() for rank in of.percentiles_ms]:
        yield _format_percentiles(shown, max(ranks))


def describe_objectives(result: Result, options: object) -> Iterator[str]:
    """Yield a line per objective (met or not, value, samples), and whether goodput uses these limits."""
    yield from map(describe_objective, result.objectives)
    limits = result.facts.ask().goodput_limits
    if limits and not result.facts.profile.goodput:
        parts = (f"{name} {limit:g} {SELECTABLE[name].unit}" for name, limit in limits.items())
        yield f"goodput: of requests within {', '.join(parts)} (the limits of --slo)"


def describe_objective(evidence: ObjectiveEvidence) -> str:
    """Describe whether an objective is met, its value with its bound, and how many samples are beyond it."""
    objective, sign = evidence.objective, "≥" if evidence.objective.is_floor else "≤"
    bound = "" if evidence.bound is None else f" ({sign} {_format_value(evidence.bound)} at 99 %)"
    value = f"{_format_value(evidence.value)} {objective.unit}{bound}" if evidence.samples else "no samples"
    beyond = f"{evidence.over} of {evidence.samples} {'below' if objective.is_floor else 'above'}"
    line, needed = (
        f"{objective}: {evidence.standing}, {value}, {beyond}",
        find_least_passing(0, objective.tail),
    )
    if evidence.independent is None or evidence.bound is not None or evidence.samples < needed:
        return line
    return f"{line}; {_describe_dependence(evidence.independent)}, a bound needs {needed}"


def _describe_dependence(independent: int) -> str:
    return f"requests that were slow together tell as much as {independent} independent ones"


def _select_shown(result: Result) -> dict[str, Distribution]:
    selected = result.choose_measured(result.facts.block().selected)
    return {key: of for key, of in result.metrics.selectable.items() if key in selected and of.n}


def _format_percentiles(shown: Mapping[str, Distribution], rank: float) -> str:
    """Format one percentile of several latencies, with the samples its bound needs if there are too few."""
    parts = []
    for key, of in shown.items():
        bound_ms = of.bounds_ms.get(rank)
        bound = "" if bound_ms is None else f" (≤ {bound_ms:.2f} at 99 %)"
        parts.append(f"{SELECTABLE[key].label} {of.percentiles_ms[rank]:.2f} ms{bound}")
    needed = find_least_passing(0, rank) if 0 < rank < 100 else 0
    worth = [(of.n, of.independent) for of in shown.values() if of.independent is not None]
    few = [n for n, _ in worth if n < needed]
    needs = f"; {format_count(min(few), 'sample')}, a bound needs {needed}" if few else ""
    dependent = [independent for n, independent in worth if independent < needed <= n]
    if dependent:
        needs += f"; {_describe_dependence(min(dependent))}, a bound needs {needed}"
    return f"P{percentile_name(rank)} {', '.join(parts)}{needs}"


def _format_value(value: float) -> str:
    """Format a latency in ms or a speed; a latency is infinite if a failed request holds that rank."""
    return "∞" if math.isinf(value) else f"{value:.2f}"


def describe_tokens(result: Result, options: object) -> Iterator[str]:
    """Yield lines on how tokens were counted, and which latencies were not measured."""
    metrics = result.metrics
    if not metrics.streamed:
        yield "TTFT, TPOT and ITL need a stream: leave out --disable-stream to measure them"
    elif not metrics.times_tokens:
        yield "TTFT, TPOT and ITL were not measured, and are left out of the block: see arrivals-not-tokens"
    elif metrics.completed and not metrics.itl.n:
        yield "TPOT and ITL need responses of more than one message: there were none"
    yield from describe_token_counts(metrics, result.facts.text_tokenizer)
    shown, hidden, every = result.facts.reasoned, result.facts.hidden_reasoning, result.whole.completed
    if shown:
        yield f"TTFT: to the first token of any kind; in {shown} of {every} responses that is reasoning"
    if hidden:
        yield (
            f"TTFT: includes reasoning that is counted in usage and not streamed, in {hidden} of {every} "
            "responses"
        )
    if metrics.planned_inputs:
        planned = format_count(metrics.planned_inputs, "request")
        yield f"input tokens: as planned for {planned}, not as reported by the server"
    if metrics.unknown_inputs:
        unknown = format_count(metrics.unknown_inputs, "request")
        yield f"input tokens: unknown for {unknown} whose usage has none"


def describe_token_counts(metrics: Metrics, tokenizer: str) -> Iterator[str]:
    """Yield lines on how tokens of answers were counted; `tokenizer` is a directory, or ""."""
    unknown = "messages were counted instead" if metrics.streamed else "their tokens count 0"
    ways = (
        (metrics.counted_by_usage, "as reported by the server in usage"),
        (
            metrics.counted_by_tokenizer,
            "no usage: counted from the text, without special tokens, by the tokenizer "
            f"{name_tokenizer(tokenizer)}",
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
        exactly = " (--continuous-usage counts them one by one)" if metrics.counted_by_usage > 0 else ""
        several = f"messages: in {format_count(spread, 'request')} some carry several tokens"
        yield f"{several}; ITL is per message, TPOT per token{exactly}"


def describe_more_figures(metrics: Metrics, reasoned: int = 0) -> Iterator[str]:
    """Yield lines on figures outside the block: visible tokens, speeds per user and GPU, finish reasons.

    In `reasoned` responses the first token was of reasoning.
    """
    if visible := _describe_visible(metrics, reasoned):
        yield visible
    others = (each for each in (*SPEEDS, *OWN, *LATENCIES) if each.key not in ("ttfvt", "prefill_speed"))
    if sentences := [sentence for figure in others if (sentence := _write_sentence(figure, metrics))]:
        yield "; ".join(sentences)
    if (speed := metrics.prefill_speed).n:
        prefill = [_write_sentence(SELECTABLE["prefill_speed"], metrics)]
        if metrics.prefill_behind:
            behind = f"{metrics.prefill_behind} of {speed.n} requests"
            prefill.append(f"{behind} were sent while another had no token yet")
        if metrics.prefill_queued is not None:
            queued = f"{100 * metrics.prefill_queued:.0f} % of TTFT"
            prefill.append(f"{queued} was in the server's queue, as it reports")
        yield "; ".join(prefill)
    if set(metrics.finish_reasons) - {"none"}:
        counts = (f"{reason} {count}" for reason, count in metrics.finish_reasons.items())
        yield f"finish reasons: {', '.join(counts)}"


def _describe_visible(metrics: Metrics, reasoned: int) -> str:
    """Write the sentence of TTFVT, or that there is none; "" where it is TTFT."""
    ttft, ttfvt = metrics.ttft, metrics.ttfvt
    if not ttft.n or ttfvt == ttft:
        return ""
    if not ttfvt.n:  # all ended within their reasoning, or the run is older than the figure
        none = "TTFVT: none: no response is known to have text after its reasoning"
        return none if reasoned >= ttft.n else ""
    sentence, never = _write_sentence(SELECTABLE["ttfvt"], metrics), ttft.n - ttfvt.n
    ended = f"; {never} of {ttft.n} responses have none: they ended within their reasoning"
    return sentence + ended if never else sentence


def _write_sentence(figure: Figure, metrics: Metrics) -> str:
    """Fill a figure's sentence in the table with its value; "" if it has no sentence, or no value."""
    value = getattr(metrics, figure.field)
    if not figure.sentence or value is None:
        return ""
    if figure.kind == OURS:
        return figure.sentence.format(value)
    return figure.sentence.format_map(figure.words_of(asdict(value))) if value.n else ""
