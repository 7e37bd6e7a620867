"""Saturation: how soon hopeless loads are ended, and that healthy ones are not, on drawn engines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.clients.adapters import Installed
from benchmarks.harness.page import Bar, Section, markdown
from benchmarks.simulated.serving import DrawnEngine
from loadgen.run.stop_rules import LEAST, SaturationRule

_FIRST_SEED = 22_000_000  # the rule's thresholds were chosen on other seeds, and on other engines
_EACH = 200
_STOPPED_S = 30.0
_HEALTHY_S = 60.0  # that a healthy load is judged for
_RATES_PER_S = (5.0, 500.0)
_MOST_SENT = 3000  # by a run: a faster one is judged for as long as these last, healthy
_EVERY_S = 0.25


@dataclass(frozen=True)
class Judged:
    """A load, × the engine's capacity, and when the rule ended it; None: it did not."""

    rate_per_s: float
    times: float
    burstiness: float
    ended: int  # requests, until then
    after_s: float | None

    @property
    def judgeable(self) -> bool:
        """Whether enough requests ended for the rule to say anything."""
        return self.ended >= LEAST


def saturation(installed: Installed, repeats: int) -> Section:
    """Two hundred hopeless loads and two hundred healthy ones in virtual time; once."""
    hopeless = [judged(_FIRST_SEED + place, (1.3, 5.0), _STOPPED_S) for place in range(_EACH)]
    healthy = [judged(_FIRST_SEED + _EACH + place, (0.3, 0.9), _HEALTHY_S) for place in range(_EACH)]
    shown = [each for each in hopeless if each.judgeable]
    stopped = sum(each.after_s is not None for each in shown)
    slow = len(hopeless) - len(shown)
    ended = sum(each.after_s is not None for each in healthy)
    bars = [
        Bar(f"hopeless loads ended within 30 s, of those that end {LEAST} requests in them",
            f"{stopped} of {len(shown)}", "all", stopped == len(shown)),
        Bar("healthy loads ended", f"{ended} of {_EACH}", "0", ended == 0),
    ]  # fmt: skip
    head = ("load, × capacity", "runs", "ended", "median", "latest")
    bands = ((0.3, 0.6), (0.6, 0.9), (1.3, 1.5), (1.5, 2.0), (2.0, 5.0))
    rows = [_row(low, high, [*healthy, *hopeless]) for low, high in bands]
    lines = [
        "5 to 500 requests/s, constant, Poisson or bursty, on engines drawn at random.",
        f"Hopeless loads that do not end {LEAST} requests in 30 s run until {LEAST} have ended:"
        f" {slow} of {_EACH}.",
        "",
        *markdown(head, rows),
    ]
    return Section("Saturation: which loads --stop-when-saturated ends", bars, lines)


def judged(seed: int, times: tuple[float, float], span_s: float) -> Judged:
    """One load drawn from a seed, between so many times the capacity, sent for that long."""
    random = np.random.default_rng(seed)
    share, rate_per_s = _between(times, random), _between(_RATES_PER_S, random)
    burstiness = (math.inf, 1.0, 0.5)[random.integers(3)]
    engine = DrawnEngine.of(rate_per_s / share, random)
    count = min(int(rate_per_s * span_s) + 1, _MOST_SENT)
    even = math.isinf(burstiness)
    gaps_s = np.ones(count) if even else random.gamma(burstiness, 1 / burstiness, count)
    sent_ns = (np.cumsum(gaps_s) / rate_per_s * 1e9).astype(np.int64)
    ran = engine.served(sent_ns, random, float(sent_ns[-1]))
    ends_ns = np.array([each.last_ns for each in ran])
    place = {at_ns: index for index, at_ns in enumerate(sent_ns.tolist())}
    rule, before = SaturationRule(rate_per_s), 0
    for now_s in np.arange(_EVERY_S, min(span_s, float(sent_ns[-1]) / 1e9) + 1e-9, _EVERY_S):
        sent, ended = (int(np.searchsorted(at_ns, now_s * 1e9, "right")) for at_ns in (sent_ns, ends_ns))
        rule.note_several(
            (place[each.arrived_ns], each.arrived_ns, each.first_ns) for each in ran[before:ended]
        )
        before = ended
        if rule.reason(float(now_s), sent - ended):
            return Judged(rate_per_s, share, burstiness, ended, float(now_s))
    return Judged(rate_per_s, share, burstiness, before, None)


def _between(ends: tuple[float, float], random: np.random.Generator) -> float:
    """A number between two, even on a log scale."""
    return float(ends[0] * (ends[1] / ends[0]) ** random.random())


def _row(low: float, high: float, every: list[Judged]) -> tuple[str, ...]:
    here = [each for each in every if low <= each.times < high]
    after_s = [each.after_s for each in here if each.after_s is not None]
    when = (f"{np.median(after_s):.1f} s", f"{max(after_s):.1f} s") if after_s else ("–", "–")
    return (f"{low:g} to {high:g}", f"{len(here)}", f"{len(after_s)}", *when)
