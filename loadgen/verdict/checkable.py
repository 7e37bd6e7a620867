"""Checkable: the checks that matter to a verdict and that not every run makes possible."""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from loadgen.base.rule import Source
from loadgen.verdict.evidence import RunEvidence

Missing = Callable[[RunEvidence, Set[Source]], bool]


class Checkable(msgspec.Struct, frozen=True):
    """A kind of check: its short name, whether a run with these sources lacks it, and what gives it."""

    name: str
    missing: Missing
    remedy: str


def _without(source: Source) -> Missing:
    return lambda _, sources: source not in sources


def _lacks_roofline(run: RunEvidence, sources: Set[Source]) -> bool:
    """A simulation needs none, and the machine of someone else's service is not known."""
    return Source.ROOFLINE not in sources and not (run.facts.server.simulated or run.hosted)


def _lacks_gauges(run: RunEvidence, sources: Set[Source]) -> bool:
    """One request at a time waits for no other; where there is no /metrics, that alone is named."""
    return Source.COUNTERS in sources and Source.GAUGES not in sources and run.target > 1


# In the order in which a verdict names them.
CHECKABLE: tuple[Checkable, ...] = (
    Checkable(
        "roofline",
        _lacks_roofline,
        "--hardware KEY or --bandwidth GB/s, and the model's files or --model-config",
    ),
    Checkable(
        "server counters",
        lambda run, sources: Source.COUNTERS not in sources and not run.hosted,
        "a server with /metrics, without --no-observe",
    ),
    Checkable("server gauges", _lacks_gauges, "a longer run: gauges are sampled at intervals"),
    Checkable("self-test", _without(Source.SELFTEST), "loadgen selftest"),
    Checkable("repeats", lambda run, _: run.facts.runs < 2 and run.facts.cell is None, "--repeat 5"),
)
