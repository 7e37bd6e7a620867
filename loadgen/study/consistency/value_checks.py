"""Value checks: figures that no measurement gives, whatever the run's other figures are."""

from __future__ import annotations

import math
from collections.abc import Iterator

from loadgen.base.rule import Evidence, invalid, joined, suspect
from loadgen.study.consistency.subject import AuditedRun
from loadgen.study.run_summary import is_below_zero

# What figures of these keys can be at most: percentages, and shares of 1.
MOST = {
    "spec_decode_acceptance_rate": 100.0,
    "success_rate": 100.0,
    "slo_attainment": 100.0,
    "cached_share": 1.0,
}
_ROUNDED = 0.006  # of a length or a rate that is printed with two decimals


@invalid(
    "impossible-value",
    "a latency, a rate, a count or a duration is below zero, infinite or beyond 1e15; a share is above all "
    "of it; goodput is above throughput, or output above all tokens; a draft's acceptance length is below 1, "
    "above one more than the tokens of a draft, or not one more than the accepted tokens of a draft",
    "the client subtracted timestamps of two clocks, or the figures were edited: get its own result file",
)
def impossible_value(run: AuditedRun) -> Evidence | None:
    """A figure that is no measurement's."""
    return joined([*_signs(run), *_shares(run), *_draft(run)])


@suspect(
    "not-a-number",
    "a latency or a rate is NaN: the client computed it of nothing, or of values that are no numbers",
    "leave the metric out, or find what it was computed from",
)
def not_a_number(run: AuditedRun) -> Evidence | None:
    """A figure that the source has, and that says nothing."""
    names = [key for key, value in run.reported.impossible.items() if math.isnan(value)]
    return f"{', '.join(names)}: NaN" if names else None


def _signs(run: AuditedRun) -> Iterator[Evidence]:
    for key, value in run.reported.impossible.items():
        if is_below_zero(value):
            yield f"{key} {value:.6g} is below zero"
        elif not math.isnan(value):
            yield f"{key} {value:.6g} is beyond any measurement"


def _shares(run: AuditedRun) -> Iterator[Evidence]:
    for key, most in MOST.items():
        if (value := run.figure(key)) is not None and value > most:
            yield f"{key} {value:g} is above {most:g}"
    good, every = run.interval("request_goodput"), run.interval("request_throughput")
    if good is not None and every is not None and good.low > every.high:
        yield f"request_goodput {good.low:g} is above request_throughput {every.high:g}"
    part, whole = run.interval("output_throughput"), run.interval("total_token_throughput")
    if part is not None and whole is not None and part.low > whole.high:
        yield f"output_throughput {part.low:g} is above total_token_throughput {whole.high:g}"


def _draft(run: AuditedRun) -> Iterator[Evidence]:
    """What contradicts itself in the counts of speculative decoding."""
    length = run.figure("spec_decode_acceptance_length") or run.figure("accept_length")
    if length and length < 1 - _ROUNDED and length != -1:
        yield f"an acceptance length of {length:g}: a pass gives one token at least"
    drafts, drafted = run.figure("spec_decode_num_drafts"), run.figure("spec_decode_draft_tokens")
    accepted = run.figure("spec_decode_accepted_tokens")
    if drafted is not None and accepted is not None and accepted > drafted:
        yield f"{accepted:.0f} of {drafted:.0f} draft tokens accepted"
    if not length or not drafts:
        return
    if drafted and length > 1 + drafted / drafts + _ROUNDED:
        yield f"an acceptance length of {length:g}: drafts have {drafted / drafts:.2f} tokens each"
    elif accepted is not None and abs(length - 1 - accepted / drafts) > _ROUNDED:
        yield (
            f"an acceptance length of {length:g}: {accepted:.0f} accepted tokens of {drafts:.0f} drafts give "
            f"{1 + accepted / drafts:.2f}"
        )
