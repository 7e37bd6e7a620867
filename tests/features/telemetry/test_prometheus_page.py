"""What Prometheus scrapes and a collector takes are the figures of the records; what cannot be is refused."""

from __future__ import annotations

import os
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import loadgen
from builders import made_runs
from builders.loops import loop_over
from fakes.scripted_server import ScriptedServer, api, closed_port, stream
from loadgen.base.errors import UsageError
from loadgen.features.telemetry.prometheus_page import PrometheusPage
from loadgen.features.telemetry.spans import SpanSink
from loadgen.features.telemetry.telemetry_sender import Feed
from loadgen.figures.metrics import list_gaps
from loadgen.figures.per_request import PerRequest
from loadgen.records.journal import Journal
from loadgen.records.record import Records
from loadgen.run.command.progress import LiveTotals, Totals

RUN = made_runs.run(requests=40)
JOURNAL = Journal(None)


@pytest.fixture
def page() -> Iterator[PrometheusPage]:
    made = PrometheusPage(f"127.0.0.1:{closed_port()}")
    yield made
    made.server.close()


def scrape(page: PrometheusPage) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{page.server.address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {f"{one.name}{''.join(sorted(one.labels.values()))}": one.value for one in samples}


def test_a_scrape_has_the_figures_of_the_report(page: PrometheusPage) -> None:
    totals = LiveTotals()
    totals.publish(Totals(sent=44, ended=40))
    page.begin(RUN.facts, totals, JOURNAL)
    page.server.serve()
    before = scrape(page)
    assert (before["loadgen_requests_totalok"], before["loadgen_run_over"]) == (0, 0)
    page.finish(RUN.records)
    found, metrics = scrape(page), RUN.metrics
    each = PerRequest.from_records(RUN.records, RUN.facts.ask())
    assert found["loadgen_requests_totalok"] == metrics.completed
    assert found["loadgen_input_tokens_total"] == metrics.total_input_tokens
    assert found["loadgen_output_tokens_total"] == metrics.total_output_tokens
    assert (found["loadgen_requests_sent_total"], found["loadgen_requests_in_flight"]) == (44, 4)
    assert found["loadgen_run_over"] == 1
    ttft_s = each.ttft_ns / 1e9
    assert found["loadgen_ttft_seconds_sum"] == pytest.approx(ttft_s.sum())
    assert found["loadgen_ttft_seconds_bucket0.1"] == (ttft_s <= 0.1).sum()
    gaps, _ = list_gaps(RUN.records, RUN.records.ok)
    assert found["loadgen_itl_seconds_count"] == len(gaps)
    assert found["loadgen_itl_seconds_bucket0.025"] == (gaps <= 25_000_000).sum()
    assert found["loadgen_tpot_seconds_sum"] == pytest.approx(each.tpot_ns().sum() / 1e9)
    assert found["loadgen_e2el_seconds_sum"] == pytest.approx(each.e2el_ns.sum() / 1e9)


def test_what_is_closed_gives_its_port_back(page: PrometheusPage) -> None:
    page.begin(RUN.facts, LiveTotals(), JOURNAL)
    page.server.serve()
    page.server.close()
    host, _, port = page.server.address.rpartition(":")
    with socket.create_server((host, int(port))):
        pass


def test_without_a_scraper_nothing_waits(page: PrometheusPage) -> None:
    page.begin(RUN.facts, LiveTotals(), JOURNAL)
    page.finish(RUN.records)
    assert page.patience_s == 0
    page.server.serve()
    scrape(page)
    assert page.patience_s > 1
    page.wait_for_scrape()  # which that scrape was


def test_connections_that_ask_for_nothing_are_no_scrapes_and_make_room(
    page: PrometheusPage, capfd: pytest.CaptureFixture[str]
) -> None:
    page.begin(RUN.facts, LiveTotals(), JOURNAL)
    page.server.serve()
    host, _, port = page.server.address.rpartition(":")
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(40)]
        for one in slow:
            with suppress(OSError):  # room was made for another
                one.sendall(b"GET /metrics HTTP/1.1\r\nx: ")
        assert page.patience_s == 0
        assert scrape(page)["loadgen_run_over"] == 0
        assert [one.recv(1) for one in slow[:32]] == [b""] * 32
        assert sum(thread.name.startswith("telemetry") for thread in threading.enumerate()) <= 8
        page.finish(RUN.records)
        slow[-1].close()
        assert not page.server.scraped.is_set()
        assert scrape(page)["loadgen_run_over"] == 1
        page.wait_for_scrape()
    assert capfd.readouterr().err == ""


@loop_over(
    ("wrong", "says"),
    [
        ({"otel": ""}, "OTEL_SDK_DISABLED switches the SDK off: unset it"),
        ({"prometheus": "used"}, "cannot listen there (Address already in use): choose another"),
        ({"otel": "", "headers": {"TraceParent": "00"}}, "--otel sends a traceparent of its own"),
        (
            {"receive_spans": "1", "shard": "0/2", "seed": 1},
            "a server exports its spans to one place",
        ),
        (
            {"receive_spans": "1", "headers": {"TraceParent": "00"}},
            "leave that --header out, or --receive",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    wrong: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "SDK" in says:
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with ScriptedServer(api(lambda _: stream())) as server:
        if wrong.get("prometheus") == "used":
            wrong = {"prometheus": str(server.port)}
        with pytest.raises(UsageError) as refused:
            loadgen.bench(server.base_url, run_dir=str(tmp_path / "runs"), **wrong)
    assert says in str(refused.value)
    assert (server.asked, (tmp_path / "runs").exists()) == ([], False)


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
