"""Energy of exporters, CPU packages and several machines: each under its name, and none counted twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from builders.loops import loop_over, loop_over_named
from builders.required import require
from loadgen.facts.sensor_facts import SensorSummary
from loadgen.features.sensors.sensor_summary import Window, list_series, render_summary, summarize_window
from loadgen.host.sensor import Key, PowerSource, Reading, Sample
from loadgen.server.sample_file import SampledSeries, thin_series

Series = Mapping[Key, Mapping[float, float]]
S = 1_000_000_000
DCGM = PowerSource("DCGM's exporter at node:9400", 1.0)
RAPL, AMD = PowerSource("RAPL"), PowerSource("amdsmi")
A, B = "GPU 0 of a", "GPU 0 of b"
PACKAGE: Key = ("package_j", "CPU package 0")


def sensed(
    series: Series, end_s: float, sources: Mapping[str, PowerSource], idle: Sequence[Sample] = ()
) -> SensorSummary:
    """The summary of a run of `end_s`, sampled each second; each series has values at some seconds."""
    window = Window(list_samples(series, end_s, sources), 0, int(end_s * S), 1.0)
    return summarize_window(window, idle)


def list_samples(series: Series, end_s: float, sources: Mapping[str, PowerSource]) -> list[Sample]:
    times = [float(at) for at in range(int(end_s) + 1)]
    return [
        Sample(
            int(at * S), 0, Reading({key: vs[at] for key, vs in series.items() if at in vs}, sources=sources)
        )
        for at in times
    ]


def steady(watts: float, times: Sequence[float]) -> dict[float, float]:
    return {at: watts * at for at in times}


EACH = [float(at) for at in range(61)]


@loop_over_named(
    ("series", "joules", "source"),
    {
        "each second": (
            {("energy_j", A): steady(100, EACH)},
            6000.0,
            "energy counter of DCGM's exporter at node:9400, updated every 1.0 s",
        ),
        "each 30 s": (
            {("energy_j", A): steady(100, (10, 40))},
            6000.0,
            "energy counter of DCGM's exporter at node:9400, updated every 30.0 s, so 53 % of the run is "
            "estimated by its pace",
        ),
        "two machines": (
            {("energy_j", A): steady(100, EACH), ("energy_j", B): steady(50, EACH)},
            9000.0,
            "energy counter of DCGM's exporter at node:9400, updated every 1.0 s",
        ),
        "power": (
            {("power_w", A): dict.fromkeys(EACH, 100.0)},
            6000.0,
            "power of DCGM's exporter at node:9400, sampled every 1 s",
        ),
    },
)
def test_an_exporter_s_energy_says_how_fine_it_is(series: Series, joules: float, source: str) -> None:
    found = require(sensed(series, 60, {where: DCGM for _, where in series}).energy)
    assert (found.joules, found.mean_w) == pytest.approx((joules, joules / 60))
    assert found.source == source


SELDOM = "its exporter updated it less than twice: run longer, or have it update more often"


@loop_over(
    ("counter", "missing"),
    [
        ({}, f"energy of {A}: {SELDOM}"),
        (steady(100, (20,)), f"energy of {A}: {SELDOM}"),
        (steady(100, (1, 6, 11)), f"energy of {A}: read for 11.0 of 60.0 s"),  # it has stopped
        ({**steady(100, (1, 20)), 40: 5.0}, f"energy of {A}: its counter went backwards"),
    ],
)
def test_an_exporter_that_says_too_little_has_no_energy(counter: dict[float, float], missing: str) -> None:
    found = sensed({("energy_j", A): counter, ("sm_mhz", A): dict.fromkeys(EACH, 1980.0)}, 60, {A: DCGM})
    assert (found.energy, found.missing, found.gpus) == (None, (missing,), (A,))


def test_a_gpu_whose_energy_is_unknown_is_not_made_up_for_by_the_cpu() -> None:
    found = sensed({("sm_mhz", "GPU 0"): dict.fromkeys(EACH, 1.0), PACKAGE: steady(40, EACH)}, 60, {})
    assert found.energy is None
    assert found.cpu_energy is not None


def test_a_board_s_power_is_that_of_its_gpu_and_not_of_another_machine_s() -> None:
    rails: Series = {("board_w", "VIN"): dict.fromkeys(EACH, 20.0), ("energy_j", "GPU 0"): steady(5, EACH)}
    found = require(sensed({**rails, ("energy_j", A): steady(100, EACH)}, 60, {A: DCGM}).energy)
    assert (found.parts, found.under) == ({"VIN": 1200.0, A: 6000.0}, {"GPU 0": 300.0})
    assert found.source == (
        "rail VIN, sampled every 1 s; energy counter of DCGM's exporter at node:9400, updated every 1.0 s"
    )


def test_many_gpus_of_several_machines_are_listed_by_machine() -> None:
    places = [f"GPU {n} of {host}" for host in ("a", "b") for n in range(8)]
    found = sensed(
        {("energy_j", where): steady(10, EACH) for where in places}, 60, dict.fromkeys(places, DCGM)
    )
    assert require(found.energy).sum_by_host() == {"a": 4800.0, "b": 4800.0}
    assert render_summary(found, 0)[1].endswith("of it a 4,800 J, b 4,800 J")


@loop_over(
    ("counted_w", "joules", "missing"),
    [
        (100, 6000.0, ()),
        (51, 3060.0, ()),
        (
            6.5,
            6000.0,
            ("energy of GPU 0: its counter rose by 390 J and its power makes 6,000 J, which counts",),
        ),
        (
            1000,
            6000.0,
            ("energy of GPU 0: its counter rose by 60,000 J and its power makes 6,000 J, which counts",),
        ),
    ],
)
def test_a_counter_that_contradicts_the_power_does_not_count(
    counted_w: float, joules: float, missing: tuple[str, ...]
) -> None:
    series: Series = {
        ("energy_j", "GPU 0"): steady(counted_w, EACH),
        ("power_w", "GPU 0"): dict.fromkeys(EACH, 100.0),
    }
    found = sensed(series, 60, {"GPU 0": AMD})
    assert found.energy is not None
    assert found.energy.joules == pytest.approx(joules)
    assert found.missing == missing
    how = "power, sampled every 1 s" if missing else "energy counter"
    assert found.energy.source == f"amdsmi {how}"


def test_counters_are_kept_as_power_and_once() -> None:
    series: Series = {
        ("energy_j", "GPU 0"): steady(100, (0, 1, 2)),
        ("power_w", "GPU 0"): dict.fromkeys((0.0, 1.0, 2.0), 99.0),
        PACKAGE: steady(40, (0, 1, 2)),
    }
    found = {
        (each.quantity, each.where): each.values.tolist() for each in list_series(list_samples(series, 2, {}))
    }
    assert found == {("power_w", "GPU 0"): [100.0, 100.0], ("package_w", "CPU package 0"): [40.0, 40.0]}


def sample(at_s: float, values: dict[Key, float]) -> Sample:
    return Sample(int(at_s * S), 0, Reading(values))


def test_of_an_energy_counter_the_power_between_readings_is_kept() -> None:
    key: Key = ("energy_j", "GPU 0")
    samples = [sample(at, {key: joules}) for at, joules in ((0, 100.0), (0.5, 200.0), (1, 10.0), (2, 40.0))]
    (power,) = list_series(samples)
    assert (power.quantity, power.where) == ("power_w", "GPU 0")
    assert power.at_ns.tolist() == [S // 2, 2 * S]  # it fell once: reset
    assert power.values.tolist() == [200.0, 30.0]


@loop_over("samples", [1, 2, 399, 400, 401, 1000, 32_768])
def test_few_samples_keep_both_ends_and_every_extreme(samples: int) -> None:
    draw = np.random.default_rng(samples)
    series = SampledSeries("power_w", "", np.arange(samples) * S, draw.normal(100, 20, samples))
    few = thin_series(series, 400)
    assert len(few.values) == min(samples, len(few.values)) <= 400
    assert (samples > 400) or len(few.values) == samples
    ends = (few.at_ns[0], few.at_ns[-1], few.values.min(), few.values.max())
    assert ends == (0, (samples - 1) * S, series.values.min(), series.values.max())
    assert (np.diff(few.at_ns) > 0).all()
