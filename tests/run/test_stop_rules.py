"""Stop rules on virtual time: what ends a run, when, and in which words."""

from __future__ import annotations

import logging
import shlex
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen import cli
from loadgen.plan import profile
from loadgen.run.command.options import parse
from loadgen.run.command.progress import Totals
from loadgen.run.stop_rules import StopRules, has_one_rate, make_stop_rules
from loadgen.transport.failure import Failure, FailureKind

REFUSED = Failure(FailureKind.CONNECT, "Connection refused")
BUSY = Failure(FailureKind.HTTP_STATUS, "503: busy")
CANCELLED = Failure(FailureKind.CANCELLED)
NONE = Totals()
LAST = ", the last with connect: Connection refused"


def rules(words: str) -> StopRules:
    return make_stop_rules(parse(shlex.split(words)))


def after(words: str, outcomes: str) -> tuple[int, str]:
    """How many of these (. success, F refused, B busy, c cancelled) had ended when it stopped, and why."""
    known = {".": None, "F": REFUSED, "B": BUSY, "c": CANCELLED}
    judged = rules(words)
    for count, outcome in enumerate(outcomes, 1):
        judged.note(known[outcome])
        if why := judged.reason(float(count), NONE):
            return count, why
    return len(outcomes), ""


@loop_over(
    ("words", "outcomes", "stopped"),
    [
        # By default: a server that never answered.
        ("", "F" * 9, (9, "")),
        (
            "",
            "F" * 12,
            (10, f"the first 10 requests all failed{LAST} (--max-consecutive-failures 0 goes on)"),
        ),
        ("", "." + "F" * 500, (501, "")),
        ("", "F" * 9 + "." + "F" * 500, (510, "")),
        ("", "c" * 30, (30, "")),
        ("", "c" * 5 + "F" * 9, (14, "")),
        ("", "B" * 10, (10, "the first 10 requests all failed, the last with http-status: 503: busy "
                            "(--max-consecutive-failures 0 goes on)")),
        # So many in a row.
        ("--max-consecutive-failures 0", "F" * 500, (500, "")),
        ("--max-consecutive-failures 3", ".FF.FF.FFF", (
            10, f"--max-consecutive-failures 3: 3 requests in a row failed{LAST}")),
        ("--max-consecutive-failures 3", ".FFcF", (
            5, f"--max-consecutive-failures 3: 3 requests in a row failed{LAST}")),
        ("--max-consecutive-failures 1", "..F", (
            3, f"--max-consecutive-failures 1: 1 request in a row failed{LAST}")),
        ("--max-consecutive-failures 20", "F" * 19, (19, "")),
        # So many in all.
        ("--max-failures 0", "...F", (4, f"--max-failures 0: 1 of 4 requests failed{LAST}")),
        ("--max-failures 2", ".F.F.", (5, "")),
        ("--max-failures 2", ".F.F.F", (6, f"--max-failures 2: 3 of 6 requests failed{LAST}")),
        # Such a share, once there is a share to speak of.
        ("--max-failures 50%", "F" * 9 + "." * 11, (20, "")),
        ("--max-failures 10%", "FFF" + "." * 17, (20, f"--max-failures 10%: 3 of 20 requests failed{LAST}")),
        ("--max-failures 10%", "FF" + "." * 18 + "F", (
            21, f"--max-failures 10%: 3 of 21 requests failed{LAST}")),
        ("--max-failures 10%", "FF" + "." * 18, (20, "")),
        ("--max-failures 0%", "F" + "." * 18, (19, "")),
        ("--max-failures 100% --max-consecutive-failures 0", "F" * 99, (99, "")),
        ("--max-failures 2.5%", "F" + "." * 39, (20, f"--max-failures 2.5%: 1 of 20 requests failed{LAST}")),
    ],
)  # fmt: skip
def test_failures_end_a_run(words: str, outcomes: str, stopped: tuple[int, str]) -> None:
    assert after(words, outcomes) == stopped


CUT = "--max-duration 60 s: 3 requests still under way after the --drain-timeout of {} s were cut"


@loop_over(
    ("words", "elapsed_s", "why"),
    [
        ("", 1e9, ""),
        ("--drain-timeout 1", 1e9, ""),
        ("--max-duration 60", 60.0, ""),
        ("--max-duration 60", 89.9, ""),
        ("--max-duration 60", 90.0, CUT.format(30)),
        ("--max-duration 60 --drain-timeout 2.5", 62.4, ""),
        ("--max-duration 60 --drain-timeout 2.5", 62.5, CUT.format(2.5)),
        ("--max-duration 60 --drain-timeout 0", 60.0, CUT.format(0)),
    ],
)
def test_time_ends_a_run_once_it_had_time_to_drain(words: str, elapsed_s: float, why: str) -> None:
    assert rules(words).reason(elapsed_s, Totals(sent=4, ended=1)) == why


@loop_over(
    ("words", "planned_ns", "send_s", "cut_s", "duration_ns"),
    [
        ("", 0, None, None, 0),
        ("", 5_000_000_000, None, None, 5_000_000_000),
        ("--max-duration 2", 0, 2.0, 32.0, 2_000_000_000),
        ("--max-duration 2", 5_000_000_000, 2.0, 32.0, 2_000_000_000),
        ("--max-duration 9 --drain-timeout 0", 5_000_000_000, 9.0, 9.0, 5_000_000_000),
    ],
)
def test_what_the_job_is_given(
    words: str, planned_ns: int, send_s: float | None, cut_s: float | None, duration_ns: int
) -> None:
    known = rules(words)
    assert (known.max_duration_s, known.cut_after_s) == (send_s, cut_s)
    assert known.duration_ns(planned_ns) == duration_ns


@loop_over(
    ("words", "elapsed_s", "not_sent", "planned_s", "said"),
    [
        ("", 100.0, 9, 0, ""),
        ("--max-duration 60", 50.0, 9, 0, ""),  # Ctrl-C ended it before
        ("--max-duration 60", 70.0, 0, 0, ""),  # it was done in time
        ("--max-duration 60", 70.0, 0, 60, ""),
        ("--max-duration 60", 70.0, 9, 0,
            "--max-duration 60 s: 9 requests were not sent; what was under way ended"),
        ("--max-duration 60", 70.0, 0, 90,  # of a closed loop that sends for 90 s
            "--max-duration 60 s: those of the last 30 s were not sent; what was under way ended"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_run_that_drained_in_time(
    words: str, elapsed_s: float, not_sent: int, planned_s: int, said: str
) -> None:
    assert rules(words).summarize(elapsed_s, not_sent, planned_s * 1_000_000_000) == said


@loop_over(
    ("keys", "judged"),
    [
        ({"request_rate": 5.0}, True),
        ({"request_rate": 5.0, "max_concurrency": 4}, True),
        ({"max_concurrency": 4}, False),
        ({"schedule": "rate 2 for 9s, 8 for 9s"}, False),
        ({"schedule": "concurrency 1 for 9s, 8 for 9s"}, False),
        ({"request_rate": 5.0, "bursts": "50 every 10s"}, False),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 9.0}, False),
        ({"trace": "docs/examples/mooncake.jsonl"}, False),
    ],
)
def test_only_a_load_of_one_rate_is_judged(keys: dict[str, Any], judged: bool) -> None:
    assert has_one_rate(profile.build(keys)) == judged


@pytest.mark.whole
def test_where_nothing_is_judged_the_flag_has_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    words = ["bench", "--quiet", "--preset", "nonesuch", "--stop-when-saturated", "--max-concurrency", "4"]
    with caplog.at_level(logging.WARNING):
        cli.main(words)
        assert [record.getMessage() for record in caplog.records if "saturated" in record.getMessage()] == [
            "no effect here: --stop-when-saturated: it judges an open loop of one --request-rate"
        ]
        caplog.clear()
        cli.main([*words[:-2], "--request-rate", "4"])
        assert "--stop-when-saturated" not in caplog.text
