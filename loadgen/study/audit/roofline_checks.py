"""Roofline checks: a run compared with what its machine could do at best."""

from __future__ import annotations

import math
from functools import partial

from loadgen.base.rule import Evidence, Source, invalid, joined, suspect
from loadgen.roofline import bound
from loadgen.roofline.ceiling import Ceiling
from loadgen.study.consistency.subject import AuditedRun
from loadgen.study.run_summary import Reported
from loadgen.verdict.evidence import percent

FAR_BEYOND = 1.25  # of the bandwidth; up to here, what a name does not show of the weights may explain it
SHORT_PROMPT = 1 / 8  # of the answer: a speed that includes the prompt is then of decoding
SLOW_PREFILL = 0.05  # of the machine's peak
MOST_DRAFT = 8.0  # tokens a pass, up to which a draft without an acceptance length may be the reason
LEAST_DRAFT = 1.3  # tokens a pass, from which messages must show it


@suspect(
    "beyond-peak",
    "the prompt's arithmetic in mean TTFT (one request at a time), or at the reported speed of prefill, "
    f"exceeds the machine's peak by more than {percent(bound.TOLERANCE - 1)}",
    "the time is not of prefill: a prefix cache, or another model",
    Source.ROOFLINE,
)
def beyond_peak(run: AuditedRun) -> Evidence | None:
    """A prompt's arithmetic exceeds the machine's peak."""
    excess = run.ceiling and bound.measure_prefill_excess(
        run.ceiling, run.reported.figures, run.reported.load
    )
    return excess.text if excess and excess.times > bound.TOLERANCE else None


@suspect(
    "slow-kernel",
    f"under {percent(bound.SLOW)} of the roofline at concurrency 1 or by the median ITL, where a step takes "
    f"{bound.LEAST_MS:g} ms at best; or a full load leaves so much time for each prompt that prefill reaches "
    f"under {percent(SLOW_PREFILL)} of the machine's peak, where it takes {bound.LEAST_MS:g} ms at best",
    "check the engine's log for the kernel that ran: a fallback for this quantization is likely",
    Source.ROOFLINE,
)
def slow_kernel(run: AuditedRun) -> Evidence | None:
    """So far below the roofline that a fallback kernel must have run."""
    if run.ceiling is None:
        return None
    return joined((_explain_slow_decode(run, run.ceiling), _explain_slow_prefill(run, run.ceiling)))


def compute_decode_share(reported: Reported, ceiling: Ceiling | None) -> float | None:
    """Compute the share of the roofline that decoding reached, from 0 to 1; None where it is not known.

    Of a row of prefill alone it is the share of the peak that its speed reached.
    """
    if ceiling is None:
        return None
    step = bound.compare_decode(ceiling, reported.figures, reported.load)
    if step is None and bound.PREFILL in reported.figures:
        prefill = bound.compare_prefill(ceiling, reported.figures, reported.load)
        return prefill.share if prefill else None
    return step.share if step else None


def _find_excess(run: AuditedRun, above: float, most: float) -> Evidence | None:
    """Decoding beyond the memory bus, where no draft explains it: not even one that is not mentioned."""
    excess = _measure_excess(run)
    if excess is None or not above < excess.times / run.unstated_draft <= most or _may_draft(run, excess):
        return None
    if not run.one_token_a_message:
        return excess.text
    return f"{excess.text}; one token per message (ITL is TPOT) rules out speculative decoding"


def _may_draft(run: AuditedRun, excess: bound.Excess) -> bool:
    """Whether the source names a draft, without its acceptance length, that may explain an excess."""
    return bool(run.named_draft) and excess.times <= MOST_DRAFT


def _measure_excess(run: AuditedRun) -> bound.Excess | None:
    if run.ceiling is None:
        return None
    return bound.measure_decode_excess(run.ceiling, run.reported.figures, run.reported.load)


beyond_roofline = invalid(
    "beyond-roofline",
    f"decoding would read more than {FAR_BEYOND} times what the memory bus carries (weights once per step, "
    "of a mixture of experts one token's, and the KV cache of all requests): only speculative decoding "
    "can, and then a message carries several tokens; a step is taken to give as many tokens as the reported "
    "acceptance length",
    "it is another model, another machine, or a client that counts tokens that were not generated",
    Source.ROOFLINE,
)(partial(_find_excess, above=FAR_BEYOND, most=math.inf))
above_roofline = suspect(
    "above-roofline",
    f"as beyond-roofline, by {percent(bound.TOLERANCE - 1)} to {percent(FAR_BEYOND - 1)}: what a name does "
    "not show of a checkpoint (a quantized head, an FP8 KV cache) may explain it; a bus reaches 90 % at most",
    "check how the weights are stored (--model-config, or the checkpoint's own headers)",
    Source.ROOFLINE,
)(partial(_find_excess, above=bound.TOLERANCE, most=FAR_BEYOND))


@suspect(
    "draft-not-stated",
    "decoding is beyond the roofline by its tokens, and no acceptance length is reported; but mean ITL is so "
    "far above mean TPOT that each message carries several, as with speculative decoding, or a name or a "
    f"label names a draft, up to {MOST_DRAFT:g} times beyond",
    "report it (vLLM's block and file have it): without a draft the figures are impossible",
    Source.ROOFLINE,
)
def draft_not_stated(run: AuditedRun) -> Evidence | None:
    """Only a draft that is not mentioned explains the speed."""
    excess = _measure_excess(run)
    if excess is None or excess.times <= bound.TOLERANCE:
        return None
    if excess.times / run.unstated_draft > bound.TOLERANCE:
        return f"{excess.text}; {run.named_draft!r} is a draft" if _may_draft(run, excess) else None
    return f"{excess.text}; {run.unstated_draft:.3g} tokens per message (mean ITL ÷ mean TPOT)"


@suspect(
    "draft-not-seen",
    "an acceptance length is reported, and mean ITL is mean TPOT: each message carries one token, where a "
    "pass that gives several sends them in one",
    "check that the acceptance length is of this run: the roofline is divided by it",
)
def draft_not_seen(run: AuditedRun) -> Evidence | None:
    """The acceptance length that is reported does not show in the messages."""
    if run.accepted < LEAST_DRAFT or not run.one_token_a_message or run.shares_gaps:
        return None
    itl, tpot = run.figure("mean_itl_ms"), run.figure("mean_tpot_ms")
    return f"{run.accepted:.3g} tokens a pass reported; mean ITL {itl:g} ms, mean TPOT {tpot:g} ms"


def _explain_slow_decode(run: AuditedRun, ceiling: Ceiling) -> Evidence | None:
    reported, load = run.reported, run.reported.load
    figures = reported.figures
    timed = any(f"{rank}_{key}_ms" in figures for rank in ("mean", "median") for key in ("tpot", "itl"))
    if not timed:  # a speed holds the prompt's time, and Transformers' devices wait for one another
        long = (load.input_len or 0.0) > SHORT_PROMPT * (load.output_len or 0.0)
        if long or (ceiling.machine.devices > 1 and "transformers" in reported.engine.lower()):
            return None
    return bound.explain_fallback(ceiling, figures, load)


def _explain_slow_prefill(run: AuditedRun, ceiling: Ceiling) -> Evidence | None:
    left_ms, length = run.prefill_left_ms, run.reported.input_len
    least_ms = ceiling.prefill_ms(length) if length else None
    if not left_ms or not least_ms or not bound.LEAST_MS <= least_ms < SLOW_PREFILL * left_ms:
        return None
    return (
        f"{left_ms:.0f} ms are left for each prompt's prefill, {100 * least_ms / left_ms:.2g} % of the "
        f"machine's peak ({least_ms:.0f} ms)"
    )
