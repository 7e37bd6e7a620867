"""Populations: the runs that simulated campaigns draw from: recorded ones, resampled, and synthetic ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from loadgen.base.arrays import Float64, Int64

RUNS = Path(__file__).with_name("aa_runs.json")
GATE_RUNS = Path(__file__).with_name("gate_runs.json")
_FIGURES = {"output_throughput": "throughput", "mean_ttft_ms": "mean TTFT"}
_GATED = _FIGURES | {"mean_tpot_ms": "mean TPOT"}


class Population(Protocol):
    """A source of figures: (campaigns, arms, repeats), in ABBA order, after `first` repeats."""

    @property
    def name(self) -> str: ...

    def figures(
        self, draws: np.random.Generator, campaigns: int, arms: int, repeats: int, first: int = 0
    ) -> Float64: ...


@dataclass(frozen=True)
class Resampled:
    """Runs of one server and one checkpoint in the order they were made, assigned to arms that do not differ.

    Each `stretch` of repeats is contiguous, from a random place of the series, and traversed as a campaign
    does: every arm once a repeat, in reverse order in every other one. Which arm comes first is drawn for
    each campaign. So what neighbouring runs have in common, drifts and bursts of other load, is preserved.
    """

    name: str
    series: Float64
    stretch: int = 2  # there and back

    def figures(
        self, draws: np.random.Generator, campaigns: int, arms: int, repeats: int, first: int = 0
    ) -> Float64:
        stretches = -(-repeats // self.stretch)
        last = len(self.series) - arms * self.stretch
        starts = draws.integers(0, last + 1, (campaigns, 1, stretches)).repeat(self.stretch, -1)[
            ..., :repeats
        ]
        places = draws.permuted(np.tile(np.arange(arms), (campaigns, 1)), axis=1)
        within = arms * (np.arange(repeats) % self.stretch)
        taken: Float64 = self.series[starts + within + _turn(places, repeats, first)]
        return taken


@dataclass(frozen=True)
class Made:
    """Synthetic: exp(spread · noise + drift · time + an offset of the start), all of it known."""

    name: str
    spread: float
    noise: str = "normal"  # or one of _NOISES
    drift: float = 0.0  # of ln(figure) over five repeats of the campaign
    start_spread: float = 0.0  # of the starts' luck
    runs_a_start: int = 1  # a repeat is a start, and so many runs are its unit
    one_start: bool = False  # an arm's runs all of one start
    in_turn: bool = True  # or each arm's runs one after another, arm by arm

    def figures(
        self, draws: np.random.Generator, campaigns: int, arms: int, repeats: int, first: int = 0
    ) -> Float64:
        shape = (campaigns, arms, repeats)
        places = np.tile(np.arange(arms), (campaigns, 1))
        order = arms * np.arange(repeats) + _turn(places, repeats, first)
        if not self.in_turn:
            order = places[..., None] * repeats + np.arange(repeats)
        luck = draws.normal(size=(campaigns, arms, 1 if self.one_start else repeats)) * self.start_spread
        if self.noise == "normal":
            noise = draws.normal(size=(*shape, self.runs_a_start)).mean(-1)
        else:
            noise = _NOISES[self.noise](draws, order)
        made: Float64 = np.exp(self.drift * (first / 5 + order / (arms * 5)) + luck + self.spread * noise)
        return made


def real() -> list[Resampled]:
    """The recorded series: two figures of each workload, in stretches of two repeats and of five."""
    return [
        Resampled(
            f"vLLM, {workload['name']}, {label}, stretches of {stretch}",
            _series(workload["starts"], key),
            stretch,
        )
        for workload in json.loads(RUNS.read_text("utf-8"))["workloads"]
        for key, label in _FIGURES.items()
        for stretch in (2, 5)
    ]


def gated() -> list[Resampled]:
    """The series recorded for gates: three figures of each, in stretches of two repeats."""
    return [
        Resampled(f"{workload['name']}, {label}", _series(workload["starts"], key))
        for workload in json.loads(GATE_RUNS.read_text("utf-8"))["workloads"]
        for key, label in _GATED.items()
    ]


def shrink(series: Resampled, spread: float) -> Resampled:
    """Scale a series' logarithms so that neighbours differ as runs of `spread` do."""
    logs = np.log(series.series)
    return replace(series, series=np.exp(logs * spread * np.sqrt(2) / np.diff(logs).std()))


def describe_recorded(path: Path = RUNS) -> str:
    """What the recorded runs are."""
    return str(json.loads(path.read_text("utf-8"))["about"])


def _series(starts: list[Mapping[str, list[float]]], key: str) -> Float64:
    return np.concatenate([np.array(start[key], float) for start in starts])


def _turn(places: Int64, repeats: int, first: int) -> Int64:
    """Whose turn it is within each repeat, the order turned round in every other one."""
    odd = (first + np.arange(repeats)) % 2 == 1
    return np.where(odd, places.shape[1] - 1 - places[..., None], places[..., None])


def _tails(draws: np.random.Generator, order: Int64) -> Float64:
    """Student's t with 3 degrees of freedom, scaled to a standard deviation of 1."""
    return np.asarray(draws.standard_t(3, order.shape) / np.sqrt(3))


def _hiccups(draws: np.random.Generator, order: Int64) -> Float64:
    """One run in ten loses up to ten standard deviations."""
    lost = 10 * draws.random(order.shape) * (draws.random(order.shape) < 0.1)
    return np.asarray(draws.normal(size=order.shape) - lost)


def _bursts(draws: np.random.Generator, order: Int64) -> Float64:
    """Runs that are neighbours in time correlate by 0.8: an autoregression, standard deviation 1."""
    from scipy import signal

    steps = draws.normal(size=(len(order), order[0].size)) * 0.6
    steps[:, 0] /= 0.6
    in_time = signal.lfilter([1.0], [1.0, -0.8], steps, axis=1)
    return np.asarray(np.take_along_axis(in_time, order.reshape(len(order), -1), 1).reshape(order.shape))


_NOISES = {"t3": _tails, "hiccups": _hiccups, "bursts": _bursts}
