"""Reuse: the share of prompt tokens that a prefix cache should hold, and what the server reports it held."""

from __future__ import annotations

import numpy as np

from loadgen.figures.record import Records
from loadgen.plan.sources import RANDOM
from loadgen.verdict.run_facts import Facts

USAGE, COUNTERS = "usage", "the server's counters"


def expected(facts: Facts) -> float | None:
    """The share, 0 to 1, that an empty cache without a limit comes to hold; None where it is not known."""
    if facts.session_turns:  # whose prompts repeat their own history: session-forgotten judges that
        return None
    if facts.data.reuse is not None:
        return facts.data.reuse
    profile = facts.profile
    if facts.data.kind != RANDOM or profile.prefix_groups > 1:
        return None
    return profile.prefix_len / (profile.prefix_len + profile.input_len)


def reported(facts: Facts, records: Records) -> dict[str, tuple[int, int]]:
    """Prompt tokens found in the cache, and of how many, by who reports them; without those of no prompt."""
    window = facts.window if facts.whole_load else None
    counted = records.ok & (records.cached_tokens >= 0)
    inputs = np.where(records.input_tokens < 0, records.planned_input, records.input_tokens)
    by = {USAGE: (int(records.cached_tokens[counted].sum()), int(inputs[counted].clip(0).sum()))}
    if window is not None and not window.error and None not in (window.prefix_hits, window.prefix_queries):
        by[COUNTERS] = (window.prefix_hits or 0, window.prefix_queries or 0)
    return {source: (hits, queries) for source, (hits, queries) in by.items() if queries}
