"""Attribution columns: of each request its parts, which sum to its wait and to its long gaps."""

from __future__ import annotations

import numpy as np

from builders import made_attributions as made
from builders import made_runs
from loadgen.features.attribution.attribution import attribute_run
from loadgen.features.attribution.attribution_section import COLUMNS
from loadgen.report import request_rows


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


def test_a_part_that_nothing_could_have_shown_is_empty() -> None:
    nothing, busy = (request_rows.list_arrays(made.run(found)) for found in (made.NOTHING_KNOWN, made.BUSY))
    empty = {
        name for name in nothing if name in {row.name for row in COLUMNS} and (nothing[name] == -1).all()
    }
    assert {"ttft_queue_ns", "ttft_http_ns", "tail_preemption_ns"} <= empty
    assert not empty & {"ttft_sent_late_ns", "ttft_unknown_ns", "tail_unknown_ns"}
    assert (busy["ttft_queue_ns"] >= 0).all()
