"""The live display: figures from counters and from what has been decoded."""

from __future__ import annotations

import io

import numpy as np
import pytest

from loadgen import clock
from loadgen.metrics.record import Record
from loadgen.session import progress as live
from loadgen.session.progress import Display, Lines, Progress
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.job import Counters

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


def progress(now: Clock, total: int = 10) -> Progress:
    return Progress("smoke", total, Counters(), begin_ns=now())


def test_nothing_yet_is_said_without_guesses(now: Clock) -> None:
    assert progress(now).line() == "smoke: 0/10 done · 0 running"


def test_every_figure_has_its_place(now: Clock) -> None:
    shown = progress(now)
    shown.counters.publish(6, 3, 30)
    shown.note(record(0, 20, 10))
    shown.note(record(1, 40, 10))
    shown.note(record(2, 0, 0, failed=True))
    now.at_ns += 2 * SECOND
    shown.line()
    shown.counters.publish(6, 3, 130)
    now.at_ns += SECOND
    assert shown.line() == ("smoke: 3/10 done · 3 running · 1 failed · 100 tok/s · TTFT 30.0 ms · 7 s left")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (61, "1:01"), (3725, "62:05")]
)
def test_time_left_is_short(seconds: float, text: str) -> None:
    assert live._duration(seconds) == text


def test_plain_lines_come_every_ten_seconds(now: Clock) -> None:
    stream = io.StringIO()
    lines, shown = Lines(stream), progress(now)
    for _ in range(41):
        lines.show(shown)
        now.at_ns += SECOND // 2
    lines.close()
    assert stream.getvalue().splitlines() == ["smoke: 0/10 done · 0 running"] * 2


def test_quiet_is_silent_and_no_terminal_gets_lines(capsys: pytest.CaptureFixture[str], now: Clock) -> None:
    assert type(live.display(quiet=True)) is Display
    assert isinstance(live.display(quiet=False), Lines)
    silent = live.display(quiet=True)
    silent.show(progress(now))
    silent.close()
    assert capsys.readouterr() == ("", "")


def test_a_bar_ends_with_its_terminal(monkeypatch: pytest.MonkeyPatch, now: Clock) -> None:
    bar, asked = live.ProgressBar(), list[object]()

    def hung_up(*words: object, **flags: object) -> None:
        asked.append(words)
        raise OSError(5, "Input/output error")

    for name in ("update", "stop"):
        monkeypatch.setattr(bar.live, name, hung_up)
    for _ in range(3):
        bar.show(progress(now))
    assert len(asked) == 1
    bar.close()


def test_a_bar_shows_the_line_and_is_taken_away(capsys: pytest.CaptureFixture[str], now: Clock) -> None:
    bar = live.ProgressBar()
    bar.show(progress(now))
    bar.close()
    assert capsys.readouterr().out == ""
