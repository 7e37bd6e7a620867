"""A run in virtual time with telemetry: records, spans and scraped figures agree, and no thread is left."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import loadgen
from builders import made_runs
from loadgen.base.errors import UsageError
from loadgen.features.telemetry.spans import SpanSink
from loadgen.features.telemetry.telemetry_sender import Feed
from loadgen.records.journal import Journal
from loadgen.records.record import Records


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"otel": "x"}, "otel: 'x' is not a collector's URL"),
        ({"prometheus": "x"}, "prometheus: 'x' is not a port"),
        ({"otel": "", "headers": {"TraceParent": "00"}}, "sends a traceparent of its own"),
    ],
)
def test_a_wrong_keyword_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        loadgen.bench("http://127.0.0.1:1", **wrong)  # type: ignore[arg-type]
    assert says in str(refused.value)


def test_an_sdk_that_is_switched_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(UsageError, match="OTEL_SDK_DISABLED switches the SDK off: unset it"):
        loadgen.bench("http://127.0.0.1:1", otel="")


class Noting(SpanSink):
    """A sink that notes the priorities of the threads that call it, and may fail."""

    sent = 0

    def __init__(self, *fails: str) -> None:
        self.fails, self.seen, self.came = fails, dict[str, int](), threading.Event()
        self.rest = -1  # rows that `finish` got

    def note(self, what: str) -> None:
        self.seen[what] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.came.set()
        if what in self.fails:
            raise RuntimeError(what)

    def take(self, records: Any, rows: Any) -> None:
        self.note("take")

    def finish(self, records: Any, rows: Any) -> None:
        self.rest = len(rows)
        self.note("finish")

    def abandon(self) -> None:
        raise AssertionError("nothing hangs")


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux alone")
@pytest.mark.parametrize(
    ("fails", "reached", "error"),
    [
        ((), {"take": 19, "finish": 0}, ""),
        (("take",), {"take": 19}, "RuntimeError: take"),
        (("finish",), {"take": 19, "finish": 0}, "RuntimeError: finish"),
    ],
)
def test_what_is_left_at_the_end_gives_way_to_nothing(
    fails: tuple[str, ...], reached: dict[str, int], error: str, tmp_path: Path
) -> None:
    rows = made_runs.answers(8, 16, 8, 1.0, 3)
    for row in rows:
        row.usage = True
    journal, sink = Journal(tmp_path / "journal.bin"), Noting(*fails)
    feed = Feed(sink, journal)
    journal.put_facts(b"{}")
    for row in rows[:5]:
        journal.add(row)
    journal._flush()
    feed.start()
    assert sink.came.wait(20)
    feed.finish(Records.from_records(rows), 20.0)
    journal.close()
    assert (sink.seen, sink.rest, feed.error) == (reached, 3 if "finish" in reached else -1, error)
