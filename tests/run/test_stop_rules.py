"""Stop rules on virtual time: what ends a run, when, and in which words."""

from __future__ import annotations

import logging
import re
import shlex
from typing import Any

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen import cli
from loadgen.plan import profile
from loadgen.run.command.options import parse
from loadgen.run.command.progress import Totals
from loadgen.run.stop_rules import StopRules, has_one_rate, make_stop_rules
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("stop_rules")

REFUSED = Failure(FailureKind.CONNECT, "Connection refused")
BUSY = Failure(FailureKind.HTTP_STATUS, "503: busy")
CANCELLED = Failure(FailureKind.CANCELLED)
NONE = Totals()
FAILURES = (
    "a server that never answered",
    "so many in a row",
    "so many in all",
    "such a share, once there is a share to speak of",
)


def rules(words: str) -> StopRules:
    return make_stop_rules(parse(shlex.split(words)))


def after(words: str, outcomes: str) -> tuple[int, str]:
    """How many of these (. success, F refused, B busy, c cancelled) had ended when it stopped, and why."""
    known = {".": None, "F": REFUSED, "B": BUSY, "c": CANCELLED}
    judged = rules(words)
    outcomes = re.sub(r"(\d+)(\D)", lambda run: int(run[1]) * run[2], outcomes)  # 3F is FFF
    for count, outcome in enumerate(outcomes, 1):
        judged.note(known[outcome])
        if why := judged.reason(float(count), NONE):
            return count, why
    return len(outcomes), ""


@loop_over(
    ("words", "outcomes", "count", "why"),
    [row for kind in FAILURES for row in TABLES[kind]],
)
def test_failures_end_a_run(words: str, outcomes: str, count: int, why: str) -> None:
    assert after(words, outcomes) == (count, why)


@loop_over(
    ("words", "elapsed_s", "why"),
    TABLES["draining"],
)
def test_time_ends_a_run_once_it_had_time_to_drain(words: str, elapsed_s: float, why: str) -> None:
    assert rules(words).reason(elapsed_s, Totals(sent=4, ended=1)) == why


@loop_over(
    ("words", "planned_ns", "send_s", "cut_s", "duration_ns"),
    TABLES["of the job"],
)
def test_what_the_job_is_given(
    words: str, planned_ns: int, send_s: float | None, cut_s: float | None, duration_ns: int
) -> None:
    known = rules(words)
    assert (known.max_duration_s, known.cut_after_s) == (send_s, cut_s)
    assert known.duration_ns(planned_ns) == duration_ns


@loop_over_named(("words", "elapsed_s", "not_sent", "planned_s", "said"), TABLES["said"])
def test_what_is_said_of_a_run_that_drained_in_time(
    words: str, elapsed_s: float, not_sent: int, planned_s: int, said: str
) -> None:
    assert rules(words).summarize(elapsed_s, not_sent, planned_s * 1_000_000_000) == said


@loop_over(
    ("keys", "judged"),
    TABLES["rates"],
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
