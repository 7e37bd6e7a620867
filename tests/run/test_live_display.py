"""The live display: figures from counters and from what has been decoded."""

from __future__ import annotations

import io
import itertools
import threading
import time

import numpy as np
import pytest
import rich.live

from builders.loops import loop_over, read_tables
from loadgen.base import clock
from loadgen.records.record import Record
from loadgen.run.command.progress import Progress
from loadgen.run.live_display import LineDisplay, ProgressBar, RunStatus, Wait
from loadgen.transport.capture import Counters
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("live_display")

SECOND = 1_000_000_000


class Clock:
    """Time that stands until it is told to go on."""

    def __init__(self) -> None:
        self.at_ns = 100 * SECOND

    def __call__(self) -> int:
        return self.at_ns


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Clock:
    time = Clock()
    monkeypatch.setattr(clock, "now_ns", time)
    return time


def record(index: int, ttft_ms: int, tokens: int, failed: bool = False) -> Record:
    arrival_ns = np.arange(tokens, dtype=np.int64) + ttft_ms * 1_000_000
    failure = Failure(FailureKind.STALL) if failed else None
    return Record(
        index, 0, 0, 0, 0, arrival_ns=arrival_ns, output_tokens=tokens or -1, reads=tokens, failure=failure
    )


def progress(now: Clock, total: int = 10) -> RunStatus:
    return RunStatus(Progress("smoke", total, Counters(), begin_ns=now()))


def publish(shown: RunStatus, sent: int, ended: int, reads: int) -> None:
    assert isinstance(shown.run.counters, Counters)
    shown.run.counters.publish(sent, ended, reads)


def test_every_figure_has_its_place(now: Clock) -> None:
    shown = progress(now)
    publish(shown, 6, 3, 30)
    shown.run.note(record(0, 20, 10))
    shown.run.note(record(1, 40, 10))
    shown.run.note(record(2, 0, 0, failed=True))
    now.at_ns += 2 * SECOND
    shown.line()
    publish(shown, 6, 3, 130)
    now.at_ns += SECOND
    assert shown.line() == ("smoke: 3/10 done · 3 running · 1 failed · 2 s left · 100 tok/s · TTFT 30.0 ms")


def test_plain_lines_come_every_ten_seconds(now: Clock) -> None:
    stream = io.StringIO()
    lines, shown = LineDisplay(stream), progress(now)
    for _ in range(41):
        lines.show(shown.run)
        now.at_ns += SECOND // 2
    lines.close()
    assert stream.getvalue().splitlines() == [
        "smoke: 0/10 done · 0 running · 10 s",
        "smoke: 0/10 done · 0 running · 20 s",
    ]


def test_a_bar_ends_with_its_terminal(monkeypatch: pytest.MonkeyPatch, now: Clock) -> None:
    bar, asked = ProgressBar(), list[object]()

    def hung_up(*words: object, **flags: object) -> None:
        asked.append(words)
        raise OSError(5, "Input/output error")

    for name in ("update", "stop"):
        monkeypatch.setattr(rich.live.Live, name, hung_up)
    for _ in range(3):
        bar.show(progress(now).run)
    assert len(asked) == 1
    bar.close()


@pytest.mark.parametrize(
    ("duration_s", "cut_after_s", "ending", "rest"),
    TABLES["left"],
)
def test_what_is_left_is_time_or_the_last_answers(
    duration_s: float | None, cut_after_s: float | None, ending: str, rest: str, now: Clock
) -> None:
    shown = RunStatus(Progress("smoke", 4, Counters(), duration_s, cut_after_s, ending, begin_ns=now()))
    publish(shown, 2, 1, 30)
    now.at_ns += 10 * SECOND
    assert shown.line() == f"smoke: 0/4 done · 1 running · {rest} · about 30 tokens"


@pytest.mark.parametrize(
    ("at_most_s", "after_s", "detail", "line"),
    TABLES["waits"],
)
def test_a_wait_says_for_what_and_how_long(
    at_most_s: float | None, after_s: float, detail: str, line: str, now: Clock
) -> None:
    wait = Wait("settling", at_most_s, now(), lambda: detail)
    now.at_ns += int(after_s * SECOND)
    assert (wait.line(), wait.share) == (line, None)


class Hasty(LineDisplay):
    """LineDisplay that wait for no second."""

    first_s, every_s = 0.0, 0.001


@pytest.mark.whole
def test_a_log_has_a_line_now_and_then_while_something_is_waited_for() -> None:
    stream, counter = io.StringIO(), itertools.count()
    with Hasty(stream).waiting("starting", 9.0, lambda: f"poll {next(counter)}"):
        while stream.getvalue().count("\n") < 3:
            time.sleep(0.001)
    written = stream.getvalue()
    last = [line.rpartition(" · ")[2] for line in written.splitlines()[:3]]
    assert last == ["poll 0", "poll 1", "poll 2"]
    assert [thread.name for thread in threading.enumerate() if thread.name == "waiting"] == []
    assert stream.getvalue() == written


@loop_over("forks", [False, True])
def test_a_moment_leaves_no_line_and_no_thread(forks: bool) -> None:
    stream = io.StringIO()
    with pytest.raises(KeyError), LineDisplay(stream).waiting("a moment", forks=forks):
        raise KeyError
    assert stream.getvalue() == ""
    assert [thread.name for thread in threading.enumerate() if thread.name == "waiting"] == []


def test_no_thread_runs_where_something_forks() -> None:
    bar = ProgressBar()
    with bar.waiting("measuring", 5.0, forks=True):
        assert bar.live is not None
        assert [thread.name for thread in threading.enumerate() if thread.name == "waiting"] == []
    assert bar.live is None


def test_a_line_of_a_log_has_80_columns_at_most(now: Clock) -> None:
    stream = io.StringIO()
    LineDisplay(stream).show_wait(Wait("waiting for it: " + "not ready yet, " * 9, 600.0, now()))
    lines = stream.getvalue().splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80


def test_time_left_follows_tokens_before_the_first_request_ends(now: Clock) -> None:
    shown = progress(now, total=4)
    shown.run.planned_tokens = 40
    publish(shown, 4, 0, 20)
    now.at_ns += 10 * SECOND
    assert shown.line() == "smoke: 0/4 done · 4 running · 10 s left · about 20 tokens"
    assert shown.share == 0.5


@pytest.mark.parametrize(("columns", "rest"), [(99, ""), (100, " · P99 999 ms · 3 queued")])
def test_a_wide_terminal_has_p99_and_the_servers_queue(columns: int, rest: str, now: Clock) -> None:
    shown = progress(now, total=100)
    shown.run.waiting = lambda: 3
    for index in range(100):
        shown.run.note(record(index, 1000 if index >= 98 else 20, 1))
    assert shown.line(columns) == f"smoke: 100/100 done · 0 running · 0 s left · TTFT 39.6 ms{rest}"


def test_no_more_requests_run_than_may(now: Clock) -> None:
    shown = progress(now)
    shown.run.max_concurrency = 2
    publish(shown, 9, 3, 0)
    assert shown.line() == "smoke: 0/10 done · 2 running · 0 s left"
    shown.run.max_concurrency = None
    shown.run.ended = 5
    assert shown.line() == "smoke: 5/10 done · 4 running · 0 s left"


@pytest.mark.parametrize(("at_s", "rest"), [(10, "1:30 left"), (99, "1 s left"), (110, "5:30 left")])
def test_a_trace_goes_on_until_its_last_request_is_due(at_s: int, rest: str, now: Clock) -> None:
    shown = RunStatus(Progress("trace", 4, Counters(), schedule_s=100.0, begin_ns=now()))
    publish(shown, 2, 1, 30)
    now.at_ns += at_s * SECOND
    assert shown.line() == f"trace: 0/4 done · 1 running · {rest} · about 30 tokens"
