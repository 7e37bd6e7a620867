"""Sampled series: few enough to keep, and never without their extremes."""

from __future__ import annotations

import numpy as np

from builders.loops import loop_over
from loadgen.features.sensors.sensor import Key, Reading, Sample
from loadgen.features.sensors.sensor_summary import list_series
from loadgen.server.sample_file import SampledSeries, thin_series

S = 1_000_000_000


def sample(at_s: float, values: dict[Key, float]) -> Sample:
    return Sample(int(at_s * S), 0, Reading(values))


def test_each_quantity_of_each_place_is_a_series_of_its_own() -> None:
    first: Key = ("temperature_c", "GPU 0")
    second: Key = ("temperature_c", "GPU 1")
    samples = [sample(0, {first: 40.0, second: 50.0}), sample(1, {first: 41.0}), sample(2, {second: 52.0})]
    found = {each.where: (each.at_ns.tolist(), each.values.tolist()) for each in list_series(samples)}
    assert found == {"GPU 0": ([0, S], [40.0, 41.0]), "GPU 1": ([0, 2 * S], [50.0, 52.0])}


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
