"""Runs of a server that speculates, whose messages are not its steps."""

from __future__ import annotations

import numpy as np

from builders.made_cases import OUTPUT, Rows, closed, observed, run
from loadgen.verdict.evidence import RunEvidence


def drafted() -> Rows:
    """Answers whose last message carries the last two tokens."""
    rows = closed()
    for row in rows:
        row.arrival_ns = row.arrival_ns[:-1]
        row.tokens = np.array([1] * (OUTPUT - 2) + [2], np.int64)
    return rows


def drafting(rows: Rows, accepted: int) -> RunEvidence:
    """A run of text at a server that accepted so many tokens of drafts of three."""
    window = observed(
        drafts=2000, draft_tokens=6000, accepted_tokens=accepted, accepted_by_position=(accepted, 0, 0)
    )
    return run(rows, prompt_format="corpus", window=window)


OF_DRAFTS: dict[str, tuple[RunEvidence, str, set[str]]] = {
    "steps-hidden": (
        drafting(closed(), 2000),
        "2000 draft tokens were accepted, and each token has a message of its own",
        set(),
    ),
    "drafts-differ": (
        drafting(drafted(), 2000),
        "accepted draft tokens: 320 by the messages, 2000 by the server's counters",
        set(),
    ),
}
