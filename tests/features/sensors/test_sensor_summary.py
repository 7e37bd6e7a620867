"""Samples become memory, energy and heat of the measured window, none counted twice, and words for each."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.required import require
from loadgen.base import clock
from loadgen.facts.run_facts import SensorSummary
from loadgen.features.sensors.sampler import Sampler
from loadgen.features.sensors.sensor_summary import Window, list_series, render_summary, summarize_window
from loadgen.host.sensor import Absent, PowerSource, Reading, Sample, Sensor
from loadgen.server.sample_file import SampledSeries, thin_series

S = 1_000_000_000
TABLES = read_tables("sensor_summary")
SOURCES = {"DCGM": PowerSource("DCGM's exporter at node:9400", 1.0), "amdsmi": PowerSource("amdsmi")}


def list_values(told: Any, count: int) -> list[float | None]:
    """Values of a series each second: all, some by their seconds, or what is level or rises with time."""
    if isinstance(told, str):
        word, number = told.split()
        return [float(number) * (at if word == "rises" else 1) for at in range(count)]
    return [told.get(str(at)) for at in range(count)] if isinstance(told, dict) else [*told]


def list_samples(
    series: Mapping[str, Any],
    held: Sequence[Any] = (),
    missing: Sequence[Any] = (),
    sources: Mapping[str, str] | None = None,
    count: int = 0,
) -> list[Sample]:
    """A sample a second: what series by quantity and place have then, what slows a place, what is missing."""
    count = count or max(map(len, [*series.values(), held, missing]))
    every = {key.partition(" ")[::2]: list_values(told, count) for key, told in series.items()}
    named = {where: SOURCES[name] for where, name in (sources or {}).items()}
    samples = []
    for at in range(count):
        values: Any = {
            key: found[at] for key, found in every.items() if found[at : at + 1] not in ([], [None])
        }
        reasons: Any = tuple(map(tuple, held[at])) if at < len(held) and held[at] is not None else None
        reading = Reading(values, reasons, tuple(missing[at]) if missing else (), named)
        samples.append(Sample(at * S, 400_000, reading))
    return samples


def summarize(
    begin_s: float, end_s: float, idle: Any = None, before_bytes: int | None = None, **told: Any
) -> SensorSummary:
    window = Window(list_samples(**told), int(begin_s * S), int(end_s * S), 1.0)
    return summarize_window(window, list_samples(idle) if idle else (), before_bytes)


def dump(found: Any) -> Any:
    """What differs from a summary of nothing, to the microjoule."""
    if isinstance(found, dict):
        return {name: dump(each) for name, each in found.items() if each not in (None, [], {}, "")}
    return round(found, 6) if isinstance(found, float) else found


@loop_over_named(("told", "summary", "lines"), TABLES["windows"])
def test_a_window_is_summarized_and_has_a_line_each(
    told: dict[str, Any], summary: dict[str, Any], lines: list[str]
) -> None:
    found = summarize(**told)
    assert dump(found.model_dump(mode="json")) | {"held_back": found.held_back} == summary
    assert render_summary(found, 1000) == lines


@loop_over_named(("known", "tokens", "lines"), TABLES["words"])
def test_the_report_has_a_line_each(known: dict[str, Any], tokens: int, lines: list[str]) -> None:
    assert render_summary(SensorSummary.model_validate(known), tokens) == lines


def test_many_gpus_of_several_machines_are_listed_by_machine() -> None:
    places = [f"GPU {n} of {host}" for host in ("a", "b") for n in range(8)]
    series = {f"energy_j {where}": "rises 10" for where in places}
    found = summarize(0, 60, series=series, sources=dict.fromkeys(places, "DCGM"), count=61)
    assert require(found.energy).sum_by_host() == {"a": 4800.0, "b": 4800.0}
    assert render_summary(found, 0)[1].endswith("of it a 4,800 J, b 4,800 J")


def test_counters_are_kept_as_power_between_readings_and_once() -> None:
    series = {"energy_j GPU 0": [0, 50, 150, 10, 40], "power_w GPU 0": [99] * 5, "package_j CPU": "rises 40"}
    found = {(each.quantity, each.where): each for each in list_series(list_samples(series, count=5))}
    assert {key: ((each.at_ns // S).tolist(), each.values.tolist()) for key, each in found.items()} == {
        ("power_w", "GPU 0"): ([1, 2, 4], [50.0, 100.0, 30.0]),  # it fell once: reset
        ("package_w", "CPU"): ([1, 2, 3, 4], [40.0] * 4),
    }


@loop_over("samples", [1, 2, 399, 400, 401, 1000, 32_768])
def test_few_samples_keep_both_ends_and_every_extreme(samples: int) -> None:
    draw = np.random.default_rng(samples)
    series = SampledSeries("power_w", "", np.arange(samples) * S, draw.normal(100, 20, samples))
    few = thin_series(series, 400)
    assert len(few.values) <= 400
    assert (samples > 400) or len(few.values) == samples
    ends = (few.at_ns[0], few.at_ns[-1], few.values.min(), few.values.max())
    assert ends == (0, (samples - 1) * S, series.values.min(), series.values.max())
    assert (np.diff(few.at_ns) > 0).all()


# Sampling.


class Counting(Sensor):
    """A sensor that counts its looks, keeps who was asked for and from which thread, and may hang."""

    def __init__(self, hangs: bool = False) -> None:
        self.asked: list[tuple[Sequence[int], str]] = []
        self.twice, self.let_go = threading.Event(), threading.Event()
        self.hangs = hangs

    def read(self, pids: Sequence[int]) -> Reading:
        self.asked.append((pids, threading.current_thread().name))
        if len(self.asked) > 1:
            self.twice.set()
        if self.hangs:
            self.let_go.wait(30)
        return Reading({("rss_bytes", ""): float(len(self.asked))})


@pytest.mark.whole
def test_looking_begins_at_once_goes_on_and_ends_with_a_last_look() -> None:
    sensor = Counting()
    sensing = Sampler([sensor, Absent("no GPU")], lambda: [7], period_s=0.0)
    assert sensing.period_s == 0.1
    begin_ns = clock.now_ns()
    with sensing.sampling():
        assert sensor.twice.wait(30)
    found = sensing.summarize(begin_ns, clock.now_ns())
    assert found.samples == len(sensor.asked) >= 3
    assert set(sensor.asked) == {((7,), "sensing")}
    assert require(found.rss).peak_bytes == found.samples
    assert found.missing == ("no GPU",)
    assert "sensing" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.whole
def test_rest_is_apart_from_the_run() -> None:
    sensor = Counting()
    sensing = Sampler([sensor], list)
    sensing.sample_idle(0.0)
    assert sensing.samples == []
    assert len(sensing.idle) == len(sensor.asked) > 0


@pytest.mark.whole
def test_a_sensor_that_does_not_answer_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.features.sensors.sampler._STOP_S", 0.01)
    stuck = Counting(hangs=True)
    sensing = Sampler([stuck], list)
    with sensing.sampling():
        pass
    missing = sensing.summarize(0, 1).missing
    stuck.let_go.set()
    assert missing[0] == "a sensor did not answer within 0.01 s of the end"
