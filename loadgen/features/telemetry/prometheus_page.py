"""Prometheus page: the figures of a run so far, as its requests end, served where Prometheus scrapes them."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import MetricsHandler
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.facts.run_facts import Facts
from loadgen.features.telemetry.port_server import PortServer
from loadgen.figures.figure_table import LATENCIES
from loadgen.figures.metrics import list_gaps
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.records.journal import Journal, Tail
from loadgen.records.record import Records
from loadgen.run.command.progress import LiveTotals

# Upper bounds of the histograms' buckets, in ns: 1, 2.5 and 5 of each power of ten from 0.1 ms to 500 s.
_EDGES_NS = np.array([step * 10**power for power in range(4, 11) for step in (10, 25, 50)], np.int64)
_SHOWN = tuple(figure for figure in LATENCIES if figure.is_common)
_MOST_OPEN, _LONGEST_READ_S = 8, 10.0  # connections at once; a head has 6.4 MB at most
_USUAL_S, _LONGEST_S, _SPARE_S = 15.0, 60.0, 1.0  # between two scrapes


class Tally:
    """The counts of a run's records that Prometheus gets: outcomes, tokens, and latencies by bucket."""

    def __init__(self, ask: MetricOptions) -> None:
        self.ask = ask
        self.outcomes: Counter[str] = Counter()  # by `ok` or the kind of failure
        self.input_tokens = self.output_tokens = 0
        self.knows_inputs = True  # of every success
        self.buckets = {figure.key: np.zeros(len(_EDGES_NS) + 1, np.int64) for figure in _SHOWN}
        self.sums_ns = {figure.key: 0.0 for figure in _SHOWN}

    def add(self, records: Records) -> None:
        """Add records by the definitions of the report's figures."""
        each = PerRequest.from_records(records, self.ask)
        self.outcomes.update("ok" if failure is None else failure.kind.value for failure in records.failures)
        prompts = each.input_tokens[each.ok]
        self.knows_inputs &= bool((prompts >= 0).all())
        self.input_tokens += int(prompts.sum())
        self.output_tokens += int(each.output_tokens[each.ok].sum())
        for figure in _SHOWN:
            if figure.of == "requests":
                values, has = figure.samples(each)
                self._add(figure.key, values[has])
            elif self.ask.times_tokens:
                for block in records.blocks():
                    self._add(figure.key, list_gaps(block, each.ok[block.first : block.last])[0])

    def _add(self, key: str, values_ns: Int64 | Float64) -> None:
        places = _EDGES_NS.searchsorted(values_ns)
        self.buckets[key] += np.bincount(places, minlength=len(_EDGES_NS) + 1)
        self.sums_ns[key] += float(values_ns.sum())


class PrometheusPage(Collector):
    """A page at host and port, of each run in turn; raises UsageError if it cannot listen there.

    Between runs the port stays taken, and a scrape waits for the next run.
    """

    def __init__(self, address: str) -> None:
        registry = CollectorRegistry()
        registry.register(self)
        self.server = _Server(address, _Scrape.factory(registry))
        self._lock = threading.Lock()
        self.known: Facts | None = None

    def begin(self, known: Facts, totals: LiveTotals, journal: Journal) -> None:
        """Begin the counts of a run: running totals are read from `totals`, its records from a journal."""
        self.known, self.totals, self.over = known, totals, False
        self.tally, self._tail = Tally(known.ask()), Tail(journal)
        self.server.scraped.clear()
        self.server.expected = False

    def finish(self, records: Records) -> None:
        """Count all records of the run, as the report does, in place of what was counted until now."""
        whole = Tally(self.tally.ask)
        whole.add(records)
        with self._lock:
            self.tally, self.over = whole, True
        self.server.expected = True

    def wait_for_scrape(self) -> None:
        """Wait until the last figures were scraped; not at all without a scraper, else 61 s at most."""
        self.server.scraped.wait(self.patience_s)

    @property
    def patience_s(self) -> float:
        """How long to wait for the last scrape (s): a second more than between two of them; 0 without any."""
        gap_s = self.server.gap_s
        return 0.0 if gap_s is None else min(gap_s, _LONGEST_S) + _SPARE_S

    def describe(self) -> list[Metric]:
        """Return no names beforehand: there are none before the first run."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the run, as a scrape gets them."""
        known = self.known
        if known is None:
            return
        with self._lock:
            for part in () if self.over else self._tail.read():
                if part.is_counted:  # others wait for the end, when texts have been counted
                    self.tally.add(part)
            tally, totals = self.tally, self.totals.read()
            of = {
                "model": known.server.model,
                "engine": known.server.engine,
                "profile": known.profile.name or "",
                "label": known.label or "",
            }
            run = GaugeMetricFamily("loadgen_run_info", "the run; 1", labels=list(of))
            run.add_metric(list(of.values()), 1)
            yield run
            yield GaugeMetricFamily("loadgen_run_over", "1 once all requests have ended", int(self.over))
            yield CounterMetricFamily("loadgen_requests_sent", "requests sent", totals.sent)
            under_way = max(totals.sent - totals.ended, 0)
            yield GaugeMetricFamily(
                "loadgen_requests_in_flight", "sent requests that have not ended", under_way
            )
            ended = CounterMetricFamily(
                "loadgen_requests",
                "requests that ended, by outcome: ok, or the kind of failure",
                labels=("outcome",),
            )
            for outcome, count in sorted({"ok": 0, **tally.outcomes}.items()):
                ended.add_metric((outcome,), count)
            yield ended
            if tally.knows_inputs:
                yield CounterMetricFamily(
                    "loadgen_input_tokens", "prompt tokens of successes", tally.input_tokens
                )
            yield CounterMetricFamily(
                "loadgen_output_tokens", "output tokens of successes", tally.output_tokens
            )
            for figure in _SHOWN:
                counts = tally.buckets[figure.key].cumsum().tolist()
                edges = [*(f"{edge / SECOND_NS:g}" for edge in _EDGES_NS.tolist()), "+Inf"]
                yield HistogramMetricFamily(
                    f"loadgen_{figure.key}_seconds",
                    f"{figure.label}: {figure.definition}",
                    list(zip(edges, counts, strict=True)),
                    tally.sums_ns[figure.key] / SECOND_NS,
                )


class _Server(PortServer):
    """A server of scrapes, which notes when they came."""

    def __init__(self, address: str, handler: type[BaseHTTPRequestHandler]) -> None:
        self.gap_s: float | None = None  # the longest between two scrapes; None: there was none
        self.scraped = threading.Event()  # since the last figures are expected
        self.expected = False
        self._last_s = 0.0
        super().__init__("--prometheus", address, handler, _MOST_OPEN)

    def begin_scrape(self) -> bool:
        """Note a scrape that begins now, and return whether it gets the last figures."""
        now_s = time.monotonic()
        gap_s = now_s - self._last_s if self._last_s else _USUAL_S
        self.gap_s, self._last_s = max(self.gap_s or 0.0, gap_s), now_s
        return self.expected


class _Scrape(MetricsHandler):
    """Answers one scrape, and has the server know once its last figures have been sent."""

    timeout = _LONGEST_READ_S
    server: _Server

    def do_GET(self) -> None:
        """Answer with the figures; a head that ended with the connection is no scrape."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        came_whole = not poll.poll(0) or self.connection.recv(1, socket.MSG_PEEK) != b""
        is_last = came_whole and self.server.begin_scrape()
        super().do_GET()
        if is_last:
            self.server.scraped.set()
