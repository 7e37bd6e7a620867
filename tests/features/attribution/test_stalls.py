"""The timeline of a run is the same whether it is held at once or in slabs, and follows what is typical."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from fakes.engine_model import MS, EngineModel
from loadgen.features.attribution import stalls
from loadgen.features.attribution.attribution import attribute
from loadgen.features.attribution.stalls import trace_timeline
from loadgen.records import record
from loadgen.records.record import Record, Records

MODEL = EngineModel(
    3, slow_steps={50: 200 * MS, 300: 90 * MS}, long_prompts={20: 9000}, lost={(30, 9): 50 * MS}, burst=2
)


@pytest.mark.parametrize("block", [1, 100, 1000])
def test_a_run_in_slabs_is_the_same_run(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = MODEL.run()
    whole, attributed = trace_timeline(run.records, 20 * MS), attribute(run.facts, run.records)
    for module in (record, stalls):
        monkeypatch.setattr(module, "BLOCK", block)
    assert not run.records.in_one_block
    parted, again = trace_timeline(run.records, 20 * MS), attribute(run.facts, run.records)
    for name in whole.__struct_fields__:
        assert np.array_equal(getattr(whole, name), getattr(parted, name)), name
    assert (again.threshold_ns, again.typical_ns) == (attributed.threshold_ns, attributed.typical_ns)
    for name in attributed.gaps.__struct_fields__:
        assert np.array_equal(getattr(attributed.gaps, name), getattr(again.gaps, name)), name


def make_streams(gaps_ns: np.ndarray, streams: int = 4) -> Records:
    """Streams that all have the same gaps between their messages, 1 µs apart."""
    at_ns = 10**12 + np.concatenate([[0], np.cumsum(gaps_ns)]).astype(np.int64)
    return Records.from_records(
        Record(
            index, index, int(at_ns[0]), int(at_ns[0]), int(at_ns[-1]), arrival_ns=at_ns + 1000 * index,
            tokens=np.ones(len(at_ns), np.int64),
        )
        for index in range(streams)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gaps_ms", "silences_ms"),
    [
        ([20] * 500, []),
        ([20] * 300 + [24] + [20] * 300, []),
        ([20] * 300 + [60] + [20] * 300, [60]),
        ([20] * 300 + [60] * 40 + [20] * 300, [60] * 40),
        ([20] * 900 + [40] * 900, []),  # a batch that grew makes longer steps, which are typical from then on
        ([20] * 900 + [40] * 900 + [110] + [40] * 99, [110]),
        ([20] * 3 + [100] + [20] * 3, [100]),
    ],
)
def test_silences_are_longer_than_what_is_typical_then(gaps_ms: list[int], silences_ms: list[int]) -> None:
    found = trace_timeline(make_streams(np.array(gaps_ms) * MS), 20 * MS)
    lengths_ms = np.rint((found.end_ns - found.begin_ns) / MS).tolist()
    assert [length for length in lengths_ms if length > 45] == [each for each in silences_ms if each > 45]
    if not silences_ms:
        assert len(lengths_ms) <= 130  # steps that change in the middle of a bin


def test_a_delay_that_is_known_makes_no_silence() -> None:
    records = make_streams(np.full(300, 20) * MS)
    late_us = np.where((records.arrival_ns - 10**12) // MS // 20 == 150, 90_000, 0).astype(np.int32)
    held = structs.replace(
        records,
        arrival_ns=records.arrival_ns + late_us.astype(np.int64) * 1000,
        delay_us=late_us,
        delay_cause=(late_us > 0).astype(np.int8),
    )
    assert len(trace_timeline(held, 20 * MS).begin_ns) == 0
