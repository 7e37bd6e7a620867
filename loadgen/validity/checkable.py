"""Checkable: the checks that matter to a verdict and that not every run makes possible."""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from loadgen.validity.evidence import RunEvidence
from loadgen.validity.rule import Source

Missing = Callable[[RunEvidence, Set[Source]], bool]


class Checkable(msgspec.Struct, frozen=True):
    """A kind of check: its short name, whether a run with these sources lacks it, and what gives it."""

    name: str
    missing: Missing
    remedy: str


def _without(source: Source) -> Missing:
    return lambda _, sources: source not in sources


# In the order in which a verdict names them. A simulation has no roofline, and needs none; one request at a
# time waits for no other, so gauges have nothing to show; where there is no /metrics, that alone is named.
CHECKABLE: tuple[Checkable, ...] = (
    Checkable(
        "roofline",
        lambda run, sources: Source.ROOFLINE not in sources and not run.facts.server.simulated,
        "--hardware KEY or --bandwidth GB/s, and the model's files or --model-config",
    ),
    Checkable("server counters", _without(Source.COUNTERS), "a server with /metrics, without --no-observe"),
    Checkable(
        "server gauges",
        lambda run, sources: Source.COUNTERS in sources and Source.GAUGES not in sources and run.target > 1,
        "a longer run: gauges are sampled at intervals",
    ),
    Checkable("self-test", _without(Source.SELFTEST), "loadgen selftest"),
    Checkable("repeats", lambda run, _: run.facts.runs < 2 and run.facts.cell is None, "--repeat 5"),
)
