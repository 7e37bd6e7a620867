"""Nominal lengths: whether requests were nine tenths of the lengths that a run is named by."""

from __future__ import annotations

import math
import os
import re

from loadgen.base.rule import Evidence, note
from loadgen.study.consistency.subject import AuditedRun
from loadgen.study.run_summary import Reported
from loadgen.verdict.evidence import percent

LOWEST, SHARE = 0.8, 0.9  # of a nominal length: the least that is drawn, and the mean
WIDEST = 0.03  # tolerance of the mean, of the nominal length
_DEVIATIONS = 4
_K = 1024
# As 1k1k, 8k/1k and 1K-8K, isl1024_osl8192, and in names alone 1024/1024 and 8192x1024.
_THOUSANDS = re.compile(r"(?<![\w.])(\d{1,3})k\s?[/x_-]?\s?(\d{1,3})k(?![a-z0-9])", re.I)
_LABELLED = re.compile(r"isl[_=: -]?(\d{2,6})\D{0,3}osl[_=: -]?(\d{2,6})(?!\d)", re.I)
_WHOLE = re.compile(r"(?<![\w./-])(\d{3,6})\s?[/x]\s?(\d{2,6})(?![\w./-])")


def nominal(run: Reported) -> tuple[float, float] | None:
    """Tokens of a prompt and an answer that a run asked for, or is named by; None where neither is known."""
    load = run.load
    if load.asked_input_len and load.asked_output_len:
        return float(load.asked_input_len), float(load.asked_output_len)
    names = (load.name, run.name, run.model)
    for text in (*names, os.path.basename(run.source), os.path.basename(os.path.dirname(run.source))):
        if (match := _THOUSANDS.search(text.replace("_", " "))) is not None:
            return float(match[1]) * _K, float(match[2]) * _K
        if (match := _LABELLED.search(text)) is not None:
            return float(match[1]), float(match[2])
        if text in names and (match := _WHOLE.search(text)) is not None:
            return float(match[1]), float(match[2])
    return None


def tolerance(requests: float) -> float:
    """How far a mean of lengths drawn evenly from [0.8 L, L] is from 0.9 L by chance, as a share of L.

    Four standard errors: 4 · (1 − 0.8) / √12 / √n.
    """
    return _DEVIATIONS * (1 - LOWEST) / math.sqrt(12 * requests)


@note(
    "nine-tenths",
    f"mean tokens of a prompt and of an answer are both {SHARE:g} of the lengths that were asked for or that "
    f"the run is named by (as 1k1k), to {_DEVIATIONS} standard errors of lengths drawn between {LOWEST:g} "
    f"and 1 of them, {percent(WIDEST)} at most: so InferenceX's client reads --random-range-ratio {LOWEST:g}",
    "compare by the tokens counted, not by the name; --compat inferencex draws the same lengths",
)
def nine_tenths(run: AuditedRun) -> Evidence | None:
    """The requests had nine tenths of the tokens that their name says."""
    lengths, n = nominal(run.reported), run.requests
    counted = run.reported.input_len, run.reported.output_len
    if lengths is None or not n or None in counted or tolerance(n) > WIDEST:
        return None
    shares = [own / whole for own, whole in zip(counted, lengths, strict=True) if own is not None]
    if any(abs(share - SHARE) > tolerance(n) for share in shares):
        return None
    own = " / ".join(f"{length:.1f}" for length in counted)
    whole = " / ".join(f"{length:.0f}" for length in lengths)
    return (
        f"{own} tokens in / out, {percent(shares[0])} and {percent(shares[1])} of the {whole} that it is "
        f"named by: as lengths drawn between {LOWEST:g} and 1 of these, {percent(1 - SHARE)} less work"
    )
