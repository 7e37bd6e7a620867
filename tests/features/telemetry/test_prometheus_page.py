"""What Prometheus scrapes are the figures of the records, however many frames they came in."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from builders import made_runs
from fakes.scripted_server import closed_port
from loadgen.base.errors import UsageError
from loadgen.features.telemetry.prometheus_page import PrometheusPage
from loadgen.figures.metrics import list_gaps
from loadgen.figures.per_request import PerRequest
from loadgen.records.journal import Journal
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


def test_a_port_in_use_is_refused(page: PrometheusPage) -> None:
    with pytest.raises(UsageError, match=r"cannot listen there \(Address already in use\): choose another"):
        PrometheusPage(page.server.address)


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
