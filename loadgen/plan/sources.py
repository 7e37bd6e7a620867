"""Sources: where a plan's requests come from, by name; each is a module with `requests`."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from loadgen.features.data.data_settings import DATA_SETS
from loadgen.plan.plan_inputs import PlanInputs, SourcedRequests
from loadgen.plan.profile import Profile

RANDOM, TRACE, RANDOM_TURNS = "random", "trace", "random_turns"
TRACES = (TRACE, "timed_trace")  # of which repeated prompts are the file's own
# By the kind that DataFacts have. What reads files is imported only where one is read.
SOURCES: dict[str, str] = {
    **{name: module for name, (module, _) in DATA_SETS.items()},
    RANDOM_TURNS: "loadgen.features.sessions.synthetic_turns",
    "file": "loadgen.features.data.recognised",
    TRACE: "loadgen.features.traces.replay",
}
# Those whose prompts are made here, again for each seed and repeat; a file has lengths and times at most.
MADE = (RANDOM, RANDOM_TURNS, "prefix_repetition", "trace")


class _Source(Protocol):
    def requests(self, inputs: PlanInputs) -> SourcedRequests: ...


def of(profile: Profile) -> str:
    """Which source a profile means, a key of SOURCES."""
    if profile.trace:
        return TRACE
    if profile.turns:
        return RANDOM_TURNS
    if profile.dataset_name in SOURCES:
        return profile.dataset_name
    return "file" if profile.dataset_path else RANDOM


def requests(inputs: PlanInputs) -> SourcedRequests:
    """The requests of a profile; raises UsageError where profile, file and server do not fit."""
    source = cast(_Source, importlib.import_module(SOURCES[of(inputs.profile)]))
    return source.requests(inputs)
