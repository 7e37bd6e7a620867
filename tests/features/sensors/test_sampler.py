"""Many looks come to memory, energy and heat of the measured window, and what is not known is said."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from builders.loops import loop_over, loop_over_named
from builders.required import require
from loadgen.base import clock
from loadgen.facts.sensor_facts import Energy, MemoryUse, SampleSpread, SensorSummary
from loadgen.features.sensors.sampler import Sampler
from loadgen.features.sensors.sensor_summary import Window, render_summary, summarize_window
from loadgen.host.sensor import Absent, Key, Reading, Sample, Sensor

S = 1_000_000_000
GIB = 1 << 30
GPU: Key = ("energy_j", "GPU 0")


def looks(
    series: dict[Key, Sequence[float | None]], period_s: float = 1.0, begin_s: float = 0.0
) -> list[Sample]:
    """A sample a period, each quantity's next value in it; None: it was not told."""
    length = max(map(len, series.values()))
    return [
        Sample(
            at_ns=int((begin_s + i * period_s) * S),
            cpu_ns=400_000,
            reading=Reading({k: v for k, vs in series.items() if i < len(vs) and (v := vs[i]) is not None}),
        )
        for i in range(length)
    ]


def sensed(
    series: dict[Key, Sequence[float | None]],
    begin_s: float,
    end_s: float,
    rest: dict[Key, Sequence[float | None]] | None = None,
    before_bytes: int | None = None,
) -> SensorSummary:
    window = Window(looks(series), int(begin_s * S), int(end_s * S), 1.0)
    return summarize_window(window, looks(rest) if rest else (), before_bytes)


def power(watts: Sequence[float], where: str = "GPU 0") -> dict[Key, Sequence[float | None]]:
    return {("power_w", where): list(watts)}


@loop_over_named(
    ("series", "begin_s", "end_s", "joules"),
    {
        "a counter, samples at both ends": ({GPU: [0, 10, 30, 60, 100]}, 0, 4, 100.0),
        "a counter, interpolated": ({GPU: [0, 10, 30, 60, 100]}, 0.5, 2.25, 32.5),
        "a counter, its pace goes on": ({GPU: [0, 10, 30]}, -0.5, 2.5, 45.0),
        "a counter that stands": ({GPU: [5, 5, 5]}, 0, 2, 0.0),
        "constant power": (power([10, 10, 10]), 0, 2, 20.0),
        "a ramp": (power([0, 10, 20, 30]), 0, 3, 45.0),
        "a ramp between samples": (power([0, 10, 20, 30]), 0.5, 2.5, 30.0),
        "constant beyond the samples": (power([10, 20]), -1, 2, 45.0),
        "one sample": (power([10]), -1, 1, 20.0),
        "two GPUs": ({**power([10, 10]), **power([5, 5], "GPU 1")}, 0, 1, 15.0),
        "a counter counts on, unread": ({GPU: [0, 10, *[None] * 9, 110]}, 0, 11, 110.0),
        "a run between two readings": ({GPU: [0, 10, 40]}, 1.2, 1.4, 6.0),
        "a run between two readings of power": (power([10, 20]), 0.2, 0.6, 5.6),
    },
)
def test_energy_is_of_the_window(
    series: dict[Key, Sequence[float | None]], begin_s: float, end_s: float, joules: float
) -> None:
    energy = require(sensed(series, begin_s, end_s).energy)
    assert energy.joules == pytest.approx(joules)
    assert energy.mean_w == pytest.approx(joules / (end_s - begin_s))
    assert sum(energy.parts.values()) == pytest.approx(joules)


@loop_over_named(
    ("series", "missing"),
    {
        "once": ({GPU: [5]}, ("energy of GPU 0: its counter was read only once",)),
        "backwards": ({GPU: [5, 9, 2, 4]}, ("energy of GPU 0: its counter went backwards",)),
        "a GPU that fell off": (
            {GPU: [1, 2, 3, None], ("sm_mhz", "GPU 0"): [100] * 20},
            ("energy of GPU 0: read for 2.0 of 19.0 s",),
        ),
        "never a part of the sum": (
            {**power([1] * 20), ("energy_j", "GPU 1"): [None] * 15 + [1, 2, 3, 4, 5]},
            ("energy of GPU 1: read for 4.0 of 19.0 s",),
        ),
        "power that was away for a while": (
            {("power_w", "GPU 0"): [9, 9, 9, *[None] * 9, 9, 9, 9]},
            ("energy of GPU 0: read for 4.0 of 14.0 s",),
        ),
        "one of two GPUs that was reset": (
            {GPU: [1, 2, 3, 4, 5, 6], ("energy_j", "GPU 1"): [1, 2, 3, 0, 1, 2]},
            ("energy of GPU 1: its counter went backwards",),
        ),
        "the sensor says why": ({("sm_mhz", "GPU 0"): [100]}, ()),
        "no GPU": ({("rss_bytes", ""): [100]}, ()),
    },
)
def test_energy_that_is_not_known_whole_is_not_told(
    series: dict[Key, Sequence[float | None]], missing: tuple[str, ...]
) -> None:
    end_s = max(map(len, series.values())) - 1.0
    found = sensed(series, 0, end_s)
    assert found.energy is None
    assert found.missing == missing


def test_idle_power_is_of_the_same_gpus() -> None:
    rest: dict[Key, Sequence[float | None]] = {GPU: [0, 20, 40], ("energy_j", "GPU 1"): [0, 500, 1000]}
    run: dict[Key, Sequence[float | None]] = {
        GPU: [100, 160, 220],
        ("energy_j", "GPU 1"): [1000, 1500, 2000],
        ("server_bytes", "GPU 0"): [GIB, GIB, GIB],
    }
    found = sensed(run, 0, 2, rest)
    assert (found.gpus, found.gpus_how) == (("GPU 0",), "with memory of the server")
    assert found.energy is not None
    assert (found.energy.mean_w, found.energy.idle_w) == (60.0, 20.0)


def test_memory_is_the_peak_and_the_second_halfs_median() -> None:
    series: dict[Key, Sequence[float | None]] = {
        ("server_bytes", "GPU 0"): [99, 1, 9, 3, 5, 4, 99],
        ("server_bytes", "GPU 1"): [99, 1, 1, None, 1, 1, 99],
        ("device_bytes", "GPU 0"): [100, 100, 100, 100, 100, 100, 100],
        ("device_bytes", "GPU 1"): [50, 50, 50, 50, 50, 50, 50],
        ("device_bytes", "GPU 2"): [7, 7, 7, 7, 7, 7, 7],
        ("rss_bytes", ""): [1, 2, 3, 4, 5, 6, 7],
    }
    found = sensed(series, 1, 5)
    assert found.server == MemoryUse(peak_bytes=10, steady_bytes=5, how="NVML, by process")
    assert found.device == MemoryUse(peak_bytes=150, steady_bytes=150, how="NVML, all processes")
    assert found.rss == MemoryUse(peak_bytes=6, steady_bytes=5, how="summed over its processes")
    assert found.pss is None
    assert (found.samples, found.cpu_ms_per_sample) == (5, 0.4)


@loop_over(
    ("before", "server"),
    [
        (None, None),
        (
            2 * GIB,
            MemoryUse(
                peak_bytes=3 * GIB,
                steady_bytes=2 * GIB,
                how="NVML, all processes, less the 2.00 GiB in use before it",
            ),
        ),
        (
            9 * GIB,
            MemoryUse(
                peak_bytes=0, steady_bytes=0, how="NVML, all processes, less the 9.00 GiB in use before it"
            ),
        ),
    ],
)
def test_where_no_gpu_lists_processes_the_server_has_what_came_on_top(
    before: int | None, server: MemoryUse | None
) -> None:
    series: dict[Key, Sequence[float | None]] = {
        ("device_bytes", "GPU 0"): [4 * GIB, 3 * GIB, 3 * GIB],
        ("device_bytes", "GPU 1"): [GIB, GIB, GIB],
    }
    found = sensed(series, 0, 2, before_bytes=before)
    assert found.server == server
    assert (found.gpus, found.gpus_how) == (("GPU 0", "GPU 1"), "all of the machine")


def told(*held: tuple[tuple[str, str], ...] | None) -> Window:
    samples = [Sample(i * S, 0, Reading(held_back=pairs)) for i, pairs in enumerate(held)]
    return Window(samples, 0, (len(held) - 1) * S, 1.0)


CAP, HOT = ("GPU 0", "power limit"), ("GPU 0", "hardware thermal slowdown")


@loop_over(
    ("window", "held"),
    [
        (told(None, None), None),
        (told((), (), None), {}),
        (
            told((CAP,), (CAP, HOT), (), None, ()),
            {"GPU 0: power limit": 0.5, "GPU 0: hardware thermal slowdown": 0.25},
        ),
    ],
)
def test_what_held_the_clocks_back_is_a_share_of_the_samples_that_tell(
    window: Window, held: dict[str, float] | None
) -> None:
    assert summarize_window(window).held_back == held


def test_what_is_missing_is_told_once_and_how_often() -> None:
    reasons = (("always", "later"), ("always",), ("always", "later"), ("outside",))
    samples = [Sample(i * S, 0, Reading(missing=missing)) for i, missing in enumerate(reasons)]
    found = summarize_window(Window(samples, 0, 2 * S, 1.0))
    assert found.missing == ("always", "later (2 of 3 samples)")


def test_a_run_between_two_samples_takes_the_one_next_to_it() -> None:
    found = sensed({("rss_bytes", ""): [1, 2]}, 0.3, 0.8)
    assert (require(found.rss).peak_bytes, found.samples, found.missing) == (2, 1, ())


FULL = SensorSummary(
    duration_s=20.0,
    period_s=0.5,
    samples=40,
    cpu_ms_per_sample=0.4,
    gpus=("GPU 0",),
    gpus_how="with memory of the server",
    server=MemoryUse(peak_bytes=int(12.34 * GIB), steady_bytes=int(12.3 * GIB), how="NVML, by process"),
    rss=MemoryUse(peak_bytes=int(3.2 * GIB), steady_bytes=GIB, how="summed over its processes"),
    energy=Energy(joules=1234.0, mean_w=61.2, idle_w=18.0, source="NVML energy counter"),
    temperature_c={"GPU 0": SampleSpread(min=40, mean=50, max=54)},
    sm_mhz={"GPU 0": SampleSpread(min=1900, mean=1980, max=2000)},
    held_back={},
)
JETSON = SensorSummary(
    duration_s=10.0,
    period_s=0.5,
    samples=20,
    cpu_ms_per_sample=0.4,
    pss=MemoryUse(peak_bytes=2 * GIB, steady_bytes=GIB, how="summed over its processes"),
    system=MemoryUse(peak_bytes=90 * GIB, steady_bytes=90 * GIB, how="what is not available"),
    energy=Energy(
        joules=400.0,
        mean_w=40.0,
        source="rail VIN, sampled every 0.5 s",
        parts={"VIN": 400.0},
        under={"VDD_GPU": 200.0, "VIN_SYS_5V0": 50.0},
    ),
    temperature_c={
        "tj-thermal": SampleSpread(min=60, mean=70, max=80),
        "gpu-thermal": SampleSpread(min=50, mean=55, max=60),
    },
    held_back={"gpu: throttle alert": 0.25},
    missing=("GPU 0 does not report power: Not Supported",),
)


@loop_over_named(
    ("known", "tokens", "lines"),
    {
        "a server's GPU": (
            FULL,
            12854,
            [
                "memory: server 12.34 GiB of GPU memory at peak (steady 12.30; NVML, by process), "
                "host RSS 3.20 GiB",
                "energy: 1,234 J, 61.2 W mean (idle 18.0), 0.096 J per output token (NVML energy counter)",
                "GPU: 54 °C max, SM 1,980 MHz mean; no throttling",
            ],
        ),
        "a Jetson, no token": (
            JETSON,
            0,
            [
                "memory: PSS 2.00 GiB, 90.00 GiB of the machine in use",
                "energy: 400 J, 40.0 W mean (rail VIN, sampled every 0.5 s), "
                "of it VDD_GPU 200 J, VIN_SYS_5V0 50 J",
                "GPU: 60 °C max; gpu: throttle alert in 25 % of samples",
                "not read: GPU 0 does not report power: Not Supported",
            ],
        ),
        "nothing": (
            SensorSummary(
                duration_s=1, period_s=0.5, samples=0, cpu_ms_per_sample=0, missing=("no NVIDIA GPU", "b")
            ),
            10,
            ["memory: unknown", "energy: unknown", "not read: no NVIDIA GPU; b"],
        ),
    },
)
def test_the_report_has_a_line_each(known: SensorSummary, tokens: int, lines: list[str]) -> None:
    assert render_summary(known, tokens) == lines


class Counting(Sensor):
    """A sensor that counts its looks and keeps who was asked for, and from which thread."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[int], str]] = []
        self.twice = threading.Event()

    def facts(self) -> dict[str, str]:
        return {}

    def read(self, pids: Sequence[int]) -> Reading:
        self.asked.append((pids, threading.current_thread().name))
        if len(self.asked) > 1:
            self.twice.set()
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


class Stuck(Sensor):
    """A sensor that does not answer until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def facts(self) -> dict[str, str]:
        return {}

    def read(self, pids: Sequence[int]) -> Reading:
        self.let_go.wait(30)
        return Reading()


@pytest.mark.whole
def test_a_sensor_that_does_not_answer_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.features.sensors.sampler._STOP_S", 0.01)
    stuck = Stuck()
    sensing = Sampler([stuck], list)
    with sensing.sampling():
        pass
    missing = sensing.summarize(0, 1).missing
    stuck.let_go.set()
    assert missing[0] == "a sensor did not answer within 0.01 s of the end"
