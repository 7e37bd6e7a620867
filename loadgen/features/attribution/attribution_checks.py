"""Attribution checks: whose the time of the tail is: other requests' prefill, or the network."""

from __future__ import annotations

from functools import partial

from loadgen.base.rule import Evidence, join_evidence, note, suspect
from loadgen.features.attribution.attribution import Attribution, attribute_run
from loadgen.features.attribution.parts import IMPAIRED, PARTS, ROWS
from loadgen.verdict.arrival_checks import arrivals_not_tokens
from loadgen.verdict.evidence import RunEvidence, has_tail, limit_doubts, percent

STALLED, NETWORK = 0.25, 0.2  # of the time beyond P99
_LEAST = 0.05  # of it: a smaller share is no evidence to add to another doubt
_LONG = "where that tail is longer than typical by 1 ms and a fifth or more"


def _divide_tail(run: RunEvidence) -> Attribution | None:
    """Return where the time beyond P99 comes from; None of few requests, or without a long tail of tokens."""
    if not has_tail(run.facts) or arrivals_not_tokens.find(run) is not None:
        return None
    found = run.derive(attribute_run)
    return None if found.nothing_to_explain else found


def describe_share(run: RunEvidence, key: str) -> Evidence | None:
    """Describe a part's shares of the time beyond P99, as evidence of another doubt; None below 5 %."""
    if (found := run.derive(_divide_tail)) is None:
        return None
    shares = [(name, tail.share(key)) for name, tail in found.tails if tail.is_long]
    large = [
        f"{percent(round(share, 2))} of the time beyond P99 {name}"
        for name, share in shares
        if share >= _LEAST
    ]
    return f"{' and '.join(large)} is that" if large else None


@note(
    "others-prefill-stalls",
    f"other requests' prefill takes {percent(STALLED)} or more of the time beyond P99 ITL, {_LONG}: all "
    "streams pause while a prompt is computed",
    f"{PARTS[ROWS['others_prefill']].remedy}, or serve prefill elsewhere",
)
def others_prefill_stalls(run: RunEvidence) -> Evidence | None:
    """Find evidence that the long gaps are mostly pauses for other requests' prompts."""
    found = run.derive(_divide_tail)
    if found is None or not found.gaps.is_long or (share := found.gaps.share("others_prefill")) < STALLED:
        return None
    return f"{percent(round(share, 2))} of the time beyond P99 ITL is other requests' prefill"


@suspect(
    "network-in-tail",
    f"lost, reordered or delayed segments (not the round trip itself) take {percent(NETWORK)} or more of the "
    f"time beyond P99 TTFT or ITL, {_LONG}: P99 is not the server's alone",
    "measure nearer to the server, or find what loses or queues packets (ip -s link, nstat); read P50",
)
def network_in_tail(run: RunEvidence) -> Evidence | None:
    """Find evidence that the network, not the server, makes a good part of P99."""
    if (found := run.derive(_divide_tail)) is None:
        return None
    sentences = []
    for name, tail in found.tails:
        shares = {key: tail.share(key) for key in IMPAIRED}
        share = sum(shares.values())
        if tail.is_long and share >= NETWORK:
            words = ", ".join(
                f"{key.replace('_', ' ')} {percent(round(part, 2))}"
                for key, part in shares.items()
                if part >= 0.005
            )
            part_of = f"{percent(round(share, 2))} of the time beyond P99 {name}"
            sentences.append(f"{part_of} is the network's ({words})")
    return join_evidence(sentences)


limit = partial(limit_doubts, (has_tail,))
