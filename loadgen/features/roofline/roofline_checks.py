"""Roofline checks: whether a run was faster than its machine can be, or far slower than it should be."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from loadgen.base.rule import Evidence, Source, suspect
from loadgen.facts.run_facts import Facts
from loadgen.features.roofline.roofline_settings import LEAST_MS, SLOW, TOLERANCE
from loadgen.figures.figure_table import DEFAULT_METRICS
from loadgen.figures.metrics import Metrics, list_figures
from loadgen.verdict.evidence import (
    RunEvidence,
    expected_reuse,
    limit_doubts,
    percent,
)

if TYPE_CHECKING:
    from loadgen.features.roofline.bound import Lengths

_HARDLY = 0.01  # of the prompt tokens: pieces of one text may begin alike


def list_bound_figures(facts: Facts, metrics: Metrics) -> tuple[dict[str, Any], Lengths]:
    """Return a run's figures under vLLM's keys, and its mean lengths, for comparison with the roofline.

    TTFT is left out where prompts share over 1 % of their tokens, or an unknown part. Of a server that
    speculates the acceptance length is among them.
    """
    from loadgen.features.roofline.bound import Lengths  # few runs know their machine

    shared = expected_reuse(facts)
    selected = DEFAULT_METRICS if shared is not None and shared <= _HARDLY else DEFAULT_METRICS[1:]
    completed = max(metrics.completed, 1)
    load = Lengths(
        input_len=metrics.total_input_tokens / max(metrics.completed - metrics.unknown_inputs, 1),
        output_len=metrics.total_output_tokens / completed,
        max_concurrency=facts.profile.max_concurrency,
    )
    figures = list_figures(metrics, replace(facts.block(), selected=selected))
    return figures | _list_acceptance(facts, metrics), load


def _list_acceptance(facts: Facts, metrics: Metrics) -> dict[str, float]:
    """Return the tokens a step of a server that speculates, by its counters, else by messages; {} if unknown.

    Of T tokens after the first, T − accepted had a step of their own.
    """
    tokens, window = metrics.total_output_tokens - metrics.completed, facts.own_window
    if not facts.speculates or tokens <= 0:
        return {}
    accepted = None if window is None else window.accepted_tokens
    steps = metrics.itl.n if accepted is None else tokens - accepted
    return {"acceptance_length": tokens / steps} if steps > 0 else {}


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
    from loadgen.features.roofline import bound  # few runs know their machine

    figures, load = list_bound_figures(run.facts, run.metrics)
    speculative = run.facts.speculates and "acceptance_length" not in figures
    return bound.explain_impossible(ceiling, figures, load, speculative=speculative)


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
    from loadgen.features.roofline import bound

    return bound.explain_fallback(ceiling, *list_bound_figures(run.facts, run.metrics))


limit = partial(limit_doubts, ("ceiling",))
