"""Target checks: whether several servers that shared a load were alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS
from loadgen.base.rule import Evidence, join_evidence, suspect
from loadgen.records.record import Records
from loadgen.transport.failure import FailureKind
from loadgen.verdict.evidence import RunEvidence, limit_doubts, percent

_NONE = -1  # of the targets
PARTS, _LEAST = 10, 5  # successive parts of a run, and the successes of a target in each
UNEQUAL = 0.25
TTFT_MS, TPOT_MS = 5.0, 0.5
_UNLIKE_PROMPTS = 0.05
FAILED, CHANCE = 0.01, 0.001


def number_targets(targets: Sequence[str], records: Records) -> Int64:
    """Return the number of each request's target, int64[requests]; -1 if it was lost with the client."""
    lost = records.mark_kinds({FailureKind.LOST})
    return np.where(lost, _NONE, records.slot % max(len(targets), 1))


@suspect(
    "targets-unequal",
    f"of several --base-url, one target's median TTFT (prompts alike to {percent(_UNLIKE_PROMPTS)}) or TPOT "
    f"is {percent(UNEQUAL)} and {TTFT_MS:g} ms or {TPOT_MS:g} ms above that of the others, and above it in "
    f"each of {PARTS} successive parts of their requests: of two equal servers one is so, by however little, "
    f"in 1 of {2 ** (PARTS - 1)} runs; or over {percent(FAILED)} of its requests failed, a share of all "
    f"failures that chance alone gives one target in fewer than 1 of {1 / CHANCE:g} runs",
    "measure each target alone, as its hardware, settings or other work differ: the table by target has the "
    "figures",
)
def targets_unequal(run: RunEvidence) -> Evidence | None:
    """Find evidence that one server was slower throughout, or failed more often, than the others."""
    if len(run.facts.targets) < 2:
        return None
    of = number_targets(run.facts.targets, run.records)
    failed, failing = run.per_request.failed & (of >= 0), list[Evidence]()
    total, requests = int(failed.sum()), int((of >= 0).sum())
    chance = CHANCE / len(run.facts.targets)
    for number, url in enumerate(run.facts.targets):
        ours = of == number
        count, share = int((failed & ours).sum()), float(ours.mean()) * len(of) / max(requests, 1)
        if count > FAILED * ours.sum() and _compute_chance(count, total, share) < chance:
            others = f"{total - count} of all others"
            failing.append(f"{count} of {int(ours.sum())} requests to {url} failed, {others}")
    return join_evidence([*failing, *_list_slower(run, of)])


def _list_slower(run: RunEvidence, of: Int64) -> Iterator[Evidence]:
    """Yield a sentence on each target whose median TTFT or TPOT is above the others' throughout.

    It is above by 25 %, and 5 ms or 0.5 ms. TTFT only counts if prompts were about equally long.
    """
    each, inputs = run.per_request, run.per_request.input_tokens
    for name, some, values_ns, least_ms in (
        ("TTFT", each.has_ttft, each.ttft_ns, TTFT_MS),
        ("TPOT", each.has_tpot, each.tpot_ns(), TPOT_MS),
    ):
        known = np.flatnonzero(some & (of >= 0))
        ordered = known[np.argsort(run.records.sent_ns[known], kind="stable")]
        values, targets = values_ns[ordered] / MS_NS, of[ordered]
        for number, url in enumerate(run.facts.targets):
            ours = targets == number
            # Each target is judged by its own requests: if these were divided beforehand, the faster server
            # ends its last while the slower one goes on.
            parts = zip(
                np.array_split(values[ours], PARTS), np.array_split(values[~ours], PARTS), strict=True
            )
            is_slower = all(
                min(len(mine), len(others)) >= _LEAST and np.median(mine) > np.median(others)
                for mine, others in parts
            )
            if not is_slower:
                continue
            mine, others = float(np.median(values[ours])), float(np.median(values[~ours]))
            if mine - others < max(least_ms, UNEQUAL * others):
                continue
            if name == "TTFT":
                of_ours, of_others = (float(inputs[ordered][side].mean()) for side in (ours, ~ours))
                if abs(of_ours - of_others) > _UNLIKE_PROMPTS * max(of_ours, of_others):
                    continue  # its prompts are others
            yield (
                f"median {name} of {url} is {mine:.4g} ms, of the others {others:.4g} ms, and higher in each "
                f"of {PARTS} successive parts"
            )


def _compute_chance(count: int, total: int, share: float) -> float:
    """Compute the probability that `count` or more of `total` failures hit a target with this share.

    The share is that of the requests; the result is 1 if it is 0 or 1.
    """
    if not 0 < share < 1:
        return 1.0
    log_share, log_rest = math.log(share), math.log1p(-share)
    logs = (
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        + k * log_share + (total - k) * log_rest
        for k in range(count, total + 1)
    )  # fmt: skip
    return math.fsum(map(math.exp, logs))


limit = partial(limit_doubts, ("targets",))
