"""The file of samples: what was sampled comes back, and nothing else does any harm."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import made_runs
from builders.damaged_columns import NamedColumns, put, turned
from builders.loops import loop_over
from loadgen.features.sensors.sensor_summary import list_series
from loadgen.host.sensor import Key, Reading, Sample
from loadgen.report import run_directory
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT
from loadgen.server import sample_file
from loadgen.server.sample_file import MOST_KEPT, MOST_SERIES, SAMPLES, KeptSamples, keep_samples
from loadgen.server.server_counters import ServerSample, ServerWindow

BEGAN_NS = 10**12
WINDOW = ServerWindow(
    samples=(
        ServerSample(at_s=0.5, running=2, waiting=0, kv_cache_usage=0.25),
        ServerSample(at_s=1.5, running=1, waiting=None, kv_cache_usage=0.125),
    )
)


def plain(samples: KeptSamples) -> list[tuple[object, ...]]:
    return [(s.quantity, s.where, s.at_ns.tolist(), s.values.tolist()) for s in samples.series]


def stored(samples: KeptSamples, directory: Path) -> Path:
    directory.mkdir()
    return made_runs.keep(replace(made_runs.run(), samples=samples), directory)


def sampled(where: str = "GPU 0", count: int = 3) -> KeptSamples:
    key: Key = ("temperature_c", where)
    readings = [Sample(BEGAN_NS + at, 0, Reading({key: 40.0 + at})) for at in range(count)]
    return keep_samples(list_series(readings), WINDOW, BEGAN_NS)


def test_gauges_and_sensors_share_the_clock_of_the_arrivals() -> None:
    assert plain(sampled()) == [
        ("running", "", [BEGAN_NS + 500_000_000, BEGAN_NS + 1_500_000_000], [2.0, 1.0]),
        ("waiting", "", [BEGAN_NS + 500_000_000], [0.0]),
        ("kv_cache_usage", "", [BEGAN_NS + 500_000_000, BEGAN_NS + 1_500_000_000], [0.25, 0.125]),
        ("temperature_c", "GPU 0", [BEGAN_NS, BEGAN_NS + 1, BEGAN_NS + 2], [40.0, 41.0, 42.0]),
    ]


def test_what_is_saved_is_loaded_and_read_by_any_numpy(tmp_path: Path) -> None:
    samples = sampled()
    sample_file.save(samples, tmp_path / SAMPLES)
    assert plain(sample_file.load(tmp_path / SAMPLES)) == plain(samples)
    assert (tmp_path / SAMPLES).stat().st_mode & 0o777 == 0o600
    with np.load(tmp_path / SAMPLES) as columns:
        assert columns["quantity"].tolist() == ["running", "waiting", "kv_cache_usage", "temperature_c"]
        assert columns["start"].tolist() == [0, 2, 3, 5, 8]


def test_a_day_of_samples_on_many_sensors_is_a_small_file(tmp_path: Path) -> None:
    values: dict[Key, float] = {("temperature_c", f"GPU {at}"): 40.0 for at in range(200)}
    readings = [Sample(at, 0, Reading(values)) for at in range(MOST_KEPT + 500)]
    samples = keep_samples(list_series(readings), None, 0)
    assert len(samples.series) == MOST_SERIES
    assert max(len(series.values) for series in samples.series) <= MOST_KEPT
    sample_file.save(samples, tmp_path / SAMPLES)
    assert (tmp_path / SAMPLES).stat().st_size < 5_000_000
    assert sample_file.load(tmp_path / SAMPLES).error == ""


def test_a_run_keeps_its_samples_and_one_without_has_no_file(tmp_path: Path) -> None:
    stored(KeptSamples(), tmp_path / "none")
    stored(sampled(), tmp_path / "some")
    assert {path.name for path in (tmp_path / "none").iterdir()} == {RESULT, ARRIVALS, REPORT}
    assert {path.name for path in (tmp_path / "some").iterdir()} == {RESULT, ARRIVALS, REPORT, SAMPLES}
    assert plain(run_directory.load(tmp_path / "some").samples) == plain(sampled())
    assert run_directory.load(tmp_path / "none").samples == KeptSamples()


DAMAGE: dict[str, Callable[[NamedColumns], Any]] = {
    "no number": put("value", 1, float("nan")),
    "an infinite one": put("value", 1, float("inf")),
    "beyond what can be": put("value", 1, 1e300),
    "before all time": put("at_ns", 1, -1),
    "past all time": put("at_ns", 1, 2**63 - 1),
    "start out of range": put("start", 1, 10**9),
    "start backwards": put("start", 2, 1),
    "start not from 0": put("start", 0, 1),
    "start of none": turned("start", lambda a: a[:0]),
    "fewer values": turned("value", lambda a: a[:-1]),
    "fewer places": turned("where", lambda a: a[:-1]),
    "whole values": turned("value", lambda a: a.astype(np.int64)),
    "times with fractions": turned("at_ns", lambda a: a.astype(np.float64)),
    "places that are numbers": turned("where", lambda a: np.zeros(len(a), np.int64)),
    "objects": turned("value", lambda a: a.astype(object)),
    "two dimensions": turned("value", lambda a: a.reshape(-1, 2)),
    **{
        f"no {name}": operator.methodcaller("pop", name)
        for name in ("quantity", "where", "start", "at_ns", "value")
    },
}


@loop_over("change", [pytest.param(change, id=name) for name, change in DAMAGE.items()])
def test_damaged_samples_cost_their_charts_alone(
    change: Callable[[NamedColumns], Any], tmp_path: Path
) -> None:
    directory = stored(sampled(), tmp_path / "run")
    with np.load(directory / SAMPLES) as arrays:
        columns = {name: arrays[name] for name in arrays}
    change(columns)
    np.savez(directory / SAMPLES, **columns)
    run = run_directory.load(directory)
    assert run.samples.series == ()
    assert run.samples.error.startswith("samples.npz cannot be read: ")
    assert run.metrics.completed == 24


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06" + b"\0" * 18, b"no archive", b"\0" * (16 << 20 | 1)])
def test_what_is_no_archive_is_said(data: bytes, tmp_path: Path) -> None:
    (tmp_path / SAMPLES).write_bytes(data)
    assert sample_file.load(tmp_path / SAMPLES).error.startswith("samples.npz cannot be read: ")


def test_a_pipe_in_its_place_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SAMPLES)
    assert "not a regular file" in sample_file.load(tmp_path / SAMPLES).error


def test_a_place_s_name_is_short_and_printable(tmp_path: Path) -> None:
    sample_file.save(sampled("\x1b[31m" + "x" * 200), tmp_path / SAMPLES)
    where = sample_file.load(tmp_path / SAMPLES).series[-1].where
    assert where.isprintable()
    assert len(where) <= 64
