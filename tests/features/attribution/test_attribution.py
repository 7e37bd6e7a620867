"""Attribution: rows, thresholds and sums are those of the report; a first token's parts are its wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import made_runs
from builders.loops import loop_over, read_tables
from loadgen.features.attribution.attribution import ROWS, attribute, attribute_run
from loadgen.features.attribution.attribution_section import COLUMNS
from loadgen.plan import profile
from loadgen.records.record import NO_CAUSE, PATH, RETRANSMISSION, Record, Records
from loadgen.report import request_rows
from loadgen.server.server_counters import ServerSample, ServerWindow


@pytest.mark.parametrize("failed", [0, 3])
def test_rows_are_those_that_the_figures_count(failed: int) -> None:
    run = made_runs.run(requests=40, tokens=30, failed=failed, seed=3)
    found, itl, ttft = run.derive(attribute_run), run.metrics.itl, run.metrics.ttft
    assert (found.threshold_ns / 1e6, found.typical_ns / 1e6) == (itl.p99_ms, itl.median_ms)
    assert len(found.ttft) == ttft.n == 40 - failed
    assert found.ttft.after_sent_ns.mean() / 1e6 == pytest.approx(ttft.mean_ms, rel=1e-12)
    assert len(found.gaps) == int(np.ceil(itl.n / 100))
    assert bool((found.gaps.whole_ns > found.threshold_ns).all())
    at = run.records.start[found.gaps.request] + found.gaps.message
    arrival_ns = run.records.arrival_ns
    assert np.array_equal(arrival_ns[at] - arrival_ns[at - 1], found.gaps.whole_ns)
    for rows in (found.ttft, found.gaps, found.tail_ttft):
        assert np.array_equal(rows.parts.sum(axis=0), rows.whole_ns)
        assert bool((rows.parts >= 0).all())
        assert sum(rows.sum_parts().values()) == int(rows.whole_ns.sum())


def test_a_run_without_token_times_has_no_rows() -> None:
    keys = {"name": "made", "input_len": 64, "output_len": 16, "num_prompts": 24, "stream": False}
    run = made_runs.run(profile=profile.build(keys))
    found = run.derive(attribute_run)
    assert (len(found.ttft), len(found.gaps), found.nothing_to_explain) == (0, 0, True)
    assert np.isnan([found.threshold_ns, found.typical_ns]).all()
    assert len(found.tail_ttft) == 0


MS = 1_000_000
SENT_NS = 10**12
CAUSES = {"": NO_CAUSE, "path_delay": PATH, "retransmission": RETRANSMISSION}


def divide(
    wait_ns: int, late_ms: int = 0, delay: tuple[int, str] | None = None, **columns: int
) -> dict[str, int]:
    """The parts, in ms, of one request whose first token arrives that long after it was sent."""
    told: dict[str, Any] = {
        f"{name[:-3]}_ns" if name.endswith("_ms") else name: value * (MS if name.endswith("_ms") else 1)
        for name, value in columns.items()
    }
    if delay is not None:
        cause = CAUSES[delay[1]]
        told |= {"delay_us": np.full(1, delay[0] * 1000, np.int32), "delay_cause": np.full(1, cause, np.int8)}
    first_ns = SENT_NS + wait_ns
    record = Record(
        0, 0, SENT_NS - late_ms * MS, SENT_NS, first_ns, arrival_ns=np.array([first_ns]),
        tokens=np.ones(1, np.int64), reads=2, unstamped_reads=1, **told,
    )  # fmt: skip
    rows = attribute(made_runs.run().facts, Records.from_records([record])).ttft
    assert rows.whole_ns.tolist() == [wait_ns + max(late_ms, 0) * MS] == [int(rows.parts.sum())]
    return {key: of_part // MS for key, of_part in rows.sum_parts().items() if of_part}


@loop_over(("columns", "parts"), read_tables("waits")["first tokens"])
def test_a_wait_is_divided_by_what_is_known(columns: dict[str, Any], parts: dict[str, int]) -> None:
    assert divide(100 * MS, **columns) == parts


TIMES = st.one_of(st.integers(-1, 10**9), st.sampled_from([-1, 0, 2**61]))
EVIDENCE = (
    "connect_ns", "rtt_ns", "request_delay_ns", "server_queue_ns", "server_prefill_ns", "server_ttft_ns",
    "server_first_token_ns", "lag_max_ns",
)  # fmt: skip
GAPS = st.lists(st.one_of(st.integers(0, 10**9), st.sampled_from([0, 0, 1, 10**7, 2 * 10**7])), max_size=30)


@st.composite
def draw_record(draw: st.DrawFn, index: int, has_delays: bool) -> Record:
    """A request with whatever times, in any order, as a stranger's file may hold them."""
    sent_ns = draw(st.integers(1, 10**10))
    arrival_ns = draw(st.integers(-(10**9), 10**10)) + np.cumsum(np.array(draw(GAPS), np.int64))
    n = len(arrival_ns)
    delays: dict[str, Any] = {} if not has_delays else {
        "delay_us": np.array(draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n)), np.int32),
        "delay_cause": np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int8),
    }  # fmt: skip
    times: dict[str, Any] = {name: draw(TIMES) for name in EVIDENCE}
    return Record(
        index, 0, draw(st.integers(0, 10**10)), sent_ns, int(arrival_ns[-1]) if n else sent_ns,
        arrival_ns=arrival_ns, tokens=np.ones(n, np.int64), input_tokens=draw(st.integers(-1, 10**6)),
        reads=draw(st.integers(0, 40)), unstamped_reads=draw(st.integers(0, 40)), **delays,
        **times,
    )  # fmt: skip


@given(st.data(), st.integers(0, 8), st.booleans())
def test_parts_are_never_negative_and_sum_exactly(data: st.DataObject, count: int, has_delays: bool) -> None:
    records = Records.from_records([data.draw(draw_record(index, has_delays)) for index in range(count)])
    samples = tuple(ServerSample(at_s=at_s, preemptions=2 * at_s) for at_s in range(10))
    facts = made_runs.run(window=ServerWindow(names="vllm", samples=samples)).facts
    found = attribute(facts, records)
    for rows in (found.ttft, found.gaps, found.tail_ttft):
        assert np.array_equal(rows.parts.sum(axis=0), rows.whole_ns)
        assert rows.parts.min(initial=0) >= 0
        assert rows.excess_ns.min(initial=0) >= 0
    assert found.gaps.parts[[ROWS[key] for key in ("sent_late", "handshake", "queue")]].sum() == 0


def test_each_part_is_a_column_of_what_it_can_be_of() -> None:
    assert " ".join(row.name.removesuffix("_ns") for row in COLUMNS) == (
        "ttft_sent_late ttft_handshake ttft_request_resent ttft_round_trip ttft_retransmission "
        "ttft_reordering ttft_path_delay ttft_http ttft_queue ttft_prefill ttft_unknown "
        "tail_read_lag tail_retransmission tail_reordering tail_path_delay tail_decode_step tail_slow_step "
        "tail_preemption tail_others_prefill tail_unknown"
    )


def test_columns_sum_to_the_waits_of_a_run_and_a_failure_has_none() -> None:
    run = made_runs.run(requests=60, failed=4)
    arrays, found = request_rows.list_arrays(run), run.derive(attribute_run)
    for kind, rows in (("ttft", found.ttft), ("tail", found.gaps)):
        each = np.stack(
            [values for name, values in arrays.items() if name.startswith(f"{kind}_") and name != "ttft_ns"]
        )
        assert int(each[:, run.records.ok].clip(0).sum()) == int(rows.whole_ns.sum())
        assert bool((each[:, ~run.records.ok] == -1).all())
