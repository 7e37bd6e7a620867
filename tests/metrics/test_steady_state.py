"""The steady part: where it begins and ends, and what is counted in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.metrics.metrics import MetricOptions
from loadgen.metrics.record import Record, Records
from loadgen.metrics.steady_state import Margin, Steady, Trim, Unsteady, held_ns, lines, ran_out, steady
from loadgen.metrics.steady_state import json as steady_json
from loadgen.transport.failure import Failure, FailureKind
from loadgen.workload import profile

MS = 1_000_000
WHOLE = Trim()


def answer(slot: int, sent_ms: int, end_ms: int, at_ms: Sequence[int] = (), **more: Any) -> Record:
    """A request of a slot; its messages of one token come at these times."""
    fields: dict[str, Any] = {"input_tokens": 5, "output_tokens": len(at_ms), "usage": True, **more}
    return Record(
        index=fields.pop("index", sent_ms * 10 + slot),
        slot=slot,
        intended_ns=sent_ms * MS,
        sent_ns=sent_ms * MS,
        end_ns=end_ms * MS,
        arrival_ns=np.array(at_ms, np.int64) * MS,
        tokens=np.ones(len(at_ms), np.int64),
        **fields,
    )


def found(rows: Sequence[Record], concurrency: int | None, trim: Trim = WHOLE, **ask: Any) -> Steady:
    window = steady(Records.of(rows), concurrency, trim, MetricOptions(**ask))
    assert isinstance(window, Steady), window
    return window


def bounds_ms(window: Steady, first_ms: int = 1000) -> tuple[int, int]:
    return round(window.begin_s * 1000) + first_ms, round(window.end_s * 1000) + first_ms


# Two slots: the second begins at 1100; the first ends for good at 1900, the second at 2300.
TWO = [
    answer(0, 1000, 1400, [1100, 1200, 1400]),
    answer(1, 1100, 1500, [1300, 1400, 1500]),
    answer(0, 1410, 1900, [1600, 1800, 1900]),
    answer(1, 1520, 2300, [1700, 2000, 2300]),
]


def test_steady_from_last_slots_first_request_to_first_slots_last() -> None:
    window = found(TWO, 2)
    assert bounds_ms(window) == (1100, 1900)
    assert (window.duration_s, window.share) == (0.8, 800 / 1300)


def test_waves_that_end_together_do_not_hide_an_idle_slot() -> None:
    """Both end together, and the last prompt goes to one of them a little later."""
    rows = [answer(0, 1000, 1400), answer(1, 1000, 1400), answer(0, 1405, 1900)]
    assert held_ns(Records.of(rows), 2) == (1000 * MS, 1400 * MS)


def test_tokens_count_by_arrival_after_begin_up_to_end() -> None:
    window = found(TWO, 2)
    # 1100 is the begin itself, 2000 and 2300 are after the end.
    assert window.output_tokens == 9
    assert window.output_throughput_per_s == pytest.approx(9 / 0.8)
    assert window.completed == 3
    assert window.request_throughput_per_s == pytest.approx(3 / 0.8)


def test_latencies_are_of_requests_that_were_sent_and_ended_inside() -> None:
    window = found(TWO, 2)
    assert window.whole == 2
    assert (window.ttft.min_ms, window.ttft.max_ms) == (190.0, 200.0)
    assert (window.tpot.min_ms, window.tpot.max_ms) == (100.0, 150.0)
    assert (window.itl.n, window.itl.max_ms) == (4, 200.0)
    assert (window.e2el.min_ms, window.e2el.max_ms) == (400.0, 490.0)


def test_turnaround_lowers_concurrency_without_ending_the_window() -> None:
    assert found(TWO, 2).mean_concurrency == pytest.approx((2 * 800 - 10 - 20) / 800)


def test_a_failed_request_adds_concurrency_but_no_tokens_or_latency() -> None:
    rows = [*TWO[:2], answer(0, 1410, 1900, [1600, 1800], failure=Failure(FailureKind.TRUNCATED)), TWO[3]]
    window = found(rows, 2)
    assert bounds_ms(window) == (1100, 1900)
    assert window.mean_concurrency == found(TWO, 2).mean_concurrency
    assert (window.output_tokens, window.completed, window.whole) == (6, 2, 1)


def test_a_connection_that_could_not_be_made_is_no_request_of_its_slot() -> None:
    refused = answer(0, 0, 2500, failure=Failure(FailureKind.CONNECT), index=99)
    assert found([*TWO, refused], 2) == found(TWO, 2)


def test_whole_answers_arrive_at_their_end() -> None:
    rows = [answer(s, sent, end, output_tokens=7) for s, sent, end in [(0, 1000, 1400), (0, 1400, 1900)]]
    window = found(rows, 1, streamed=False)
    assert (window.output_tokens, window.whole, window.ttft.n, window.e2el.n) == (14, 2, 0, 2)


def test_an_open_loop_is_steady_from_its_first_request_to_its_last() -> None:
    window = found([*TWO, answer(9, 1950, 1990, [1980])], None)
    assert bounds_ms(window) == (1000, 1950)
    assert (window.completed, window.whole, window.output_tokens) == (3, 3, 10)


@pytest.mark.parametrize(
    ("warmup", "cooldown", "expected"),
    [
        ("", "", (1100, 1900)),
        ("0", "0s", (1100, 1900)),
        ("0.1s", "", (1200, 1900)),
        ("", "0.25s", (1100, 1650)),
        ("0.1s", "0.25s", (1200, 1650)),
        ("1", "", (1400, 1900)),  # the first to end inside
        ("2", "", (1500, 1900)),
        ("", "1", (1100, 1520)),  # the last sent inside
        ("", "2", (1100, 1410)),
        ("1", "1", (1400, 1520)),
    ],
)
def test_warm_up_and_cool_down_narrow_it_by_requests_or_seconds(
    warmup: str, cooldown: str, expected: tuple[int, int]
) -> None:
    assert bounds_ms(found(TWO, 2, Trim.parse(warmup, cooldown))) == expected


@pytest.mark.parametrize(
    ("rows", "concurrency", "trim", "why"),
    [
        ([], 1, WHOLE, "no request was sent"),
        ([answer(0, 0, 9, failure=Failure(FailureKind.CONNECT))], 1, WHOLE, "no request was sent"),
        (TWO, 3, WHOLE, "concurrency 3 was requested and 2 was reached"),
        ([answer(0, 1000, 1100), answer(1, 1200, 1300)], 2, WHOLE, "a slot ran out of requests before all 2"),
        ([answer(0, 1000, 1100), answer(1, 1000, 1300)], None, WHOLE, "at the same moment"),
        (TWO, 2, Trim.parse("2", "2"), "leave nothing"),
        (TWO, 2, Trim.parse("0.4s", "0.4s"), "leave nothing"),
        (TWO, 2, Trim.parse("4", ""), "leave nothing"),
        (TWO, 2, Trim.parse("", "4"), "leave nothing"),
        (TWO, 2, Trim.parse("", "9999s"), "leave nothing"),
    ],
)
def test_where_there_is_none_it_says_why(
    rows: list[Record], concurrency: int | None, trim: Trim, why: str
) -> None:
    window = steady(Records.of(rows), concurrency, trim, MetricOptions())
    assert isinstance(window, Unsteady)
    assert why in window.why
    assert lines(window)[0].startswith("steady state: none: ")


@pytest.mark.parametrize(
    ("text", "margin"),
    [
        ("", Margin()),
        ("20", Margin(requests=20)),
        ("5s", Margin(time_ns=5_000 * MS)),
        ("2.5s", Margin(time_ns=2_500 * MS)),
        (" 7 ", Margin(requests=7)),
    ],
)
def test_a_margin_is_requests_or_seconds(text: str, margin: Margin) -> None:
    assert Trim.parse(text, "") == Trim(warmup=margin)
    assert Trim.parse("", text) == Trim(cooldown=margin)


@pytest.mark.parametrize(
    "text", ["-1", "1.5", "5m", "s", "5 s", "x", "inf", "nans", "1e3", "1e3s", "٣", "9" * 40]
)
def test_another_margin_is_refused_by_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--warmup .*requests as 20, or seconds as 5s"):
        Trim.parse(text, "")
    with pytest.raises(UsageError, match=r"^--cooldown "):
        Trim.parse("", text)


def test_the_report_has_the_window_in_two_lines() -> None:
    said = lines(found(TWO, 2))
    assert said == [
        "steady state: 0.1 to 0.9 s (62 %), concurrency 1.96, 11.2 tok/s, 3.75 req/s",
        "  2 requests entirely inside it: mean TTFT 195.00, TPOT 125.00, E2EL 445.00 ms",
    ]


def test_a_window_without_whole_requests_has_rates_alone() -> None:
    window = found([answer(0, 1000, 1900, [1200, 1300]), answer(1, 1100, 1500, [1300])], 2)
    assert (window.whole, window.output_tokens, window.ttft.n) == (1, 3, 1)
    window = found([answer(0, 1000, 1500, [1200, 1300]), answer(1, 1100, 1900, [1300])], 2)
    assert (window.whole, window.output_tokens, window.ttft.n) == (0, 3, 0)
    assert lines(window)[-1] == "  0 requests entirely inside it"


def test_the_json_is_strict_and_names_every_figure() -> None:
    short = [answer(0, 1000, 1300, [1300]), answer(0, 1300, 1500, [1500])]
    stored = json.loads(json.dumps(steady_json(found(short, 1)), allow_nan=False))
    assert list(stored) == list(Steady.__struct_fields__)
    assert (stored["begin_s"], stored["whole"], stored["tpot"]) == (0.0, 2, None)
    assert (stored["ttft"]["mean_ms"], stored["ttft"]["percentiles_ms"]) == (250.0, {"99": 299.0})
    assert steady_json(Unsteady("so")) == {"why": "so"}


TIMED: dict[str, Any] = {"max_concurrency": 2, "num_prompts": 4}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({**TIMED, "duration": 2.0}, "all 4 prompts were sent and the load fell 0.9 s into the 2 s"),
        ({**TIMED, "duration": 0.9}, ""),  # the first slot came free as the time was up
        ({**TIMED, "num_prompts": 5, "duration": 2.0}, ""),
        ({**TIMED}, ""),
        ({**TIMED, "duration": 2.0, "request_rate": 5.0}, ""),  # the schedule was known before
    ],
)
def test_prompts_that_run_out_before_the_time_is_up_are_told(keys: dict[str, Any], told: str) -> None:
    said = ran_out(Records.of(TWO), profile.build(keys))
    assert told in said
    assert bool(said) == bool(told)
