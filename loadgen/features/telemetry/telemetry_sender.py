"""Telemetry sender: while a plan is sent, its records go to a collector and a page, and spans are received.

The collector has a thread that nothing waits for. The records left at the end have a thread of their own,
which no longer gives way: a busy machine would starve it, and a thread may not take back the priority that it
gave up. The page reads the records when it is scraped.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import measure_realtime_offset_ns
from loadgen.base.errors import Broken, UsageError, make_guarded
from loadgen.base.structs import replace
from loadgen.base.text import describe_install, format_count
from loadgen.base.urls import is_loopback, is_unspecified
from loadgen.facts.run_facts import Facts, SpanFacts
from loadgen.features.telemetry.server_spans import KEY_BYTES, TRACEPARENT, SpanJoin, TraceIds
from loadgen.plan.plan import Plan
from loadgen.records.journal import Journal, Tail
from loadgen.records.record import Records
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display, LiveTotals
from loadgen.run.firing import Outcome, TransportOptions, Watch
from loadgen.run.measurement import PlanSender
from loadgen.settings.run_settings import BY_ENVIRONMENT

if TYPE_CHECKING:
    from loadgen.features.telemetry.prometheus_page import PrometheusPage
    from loadgen.features.telemetry.span_exports import SpanReceiver
    from loadgen.features.telemetry.spans import SpanSink

_EVERY_S, _TURN_S = 0.5, 0.1
_LOWEST = 19  # nice
_LAST_S = 0.5  # for a sink that is abandoned to notice
_LOG = logging.getLogger("loadgen")
_PATIENCE_S, _HURRIED_S = 5.0, 2.0  # for a collector that takes no spans; the latter after a signal
_BATCH_S, _POLL_S = 7.0, 0.1  # the SDK exports a batch after 5 s
_PLACES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DEFAULT = "http://localhost:4318"
HOW_TO_EXPORT = (
    "start vLLM or SGLang (with --enable-trace) with OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf and "
    "--otlp-traces-endpoint"
)
_OURS = f"sends a {TRACEPARENT} of its own with each request"


class Feed:
    """Follows the journal of a run for a collector; what it fails at is kept in `error`.

    It takes frames whose tokens are all counted: others wait for the end, when texts have been counted.
    """

    def __init__(self, sink: SpanSink, journal: Journal) -> None:
        self.sink, self.error = sink, ""
        self._tail = Tail(journal)
        self._taken: list[Int64] = []  # plan indices
        self._over, self._abandoned = threading.Event(), False
        self._follower = self._make_thread(self._run)
        self._thread = self._follower  # the one under way

    def _make_thread(self, target: Callable[[], object]) -> threading.Thread:
        return threading.Thread(target=target, name="telemetry-otel", daemon=True)

    def start(self) -> None:
        """Start to follow; call it after the last fork."""
        self._follower.start()

    def finish(self, records: Records, patience_s: float, most_s: float = math.inf) -> None:
        """Give the sink those of all records that it did not get, and wait until it took them, then `end`.

        It waits `most_s` seconds at most, and `patience_s` without progress.
        """
        self._over.set()
        self._thread = self._make_thread(lambda: self._give_rest(records))
        self._thread.start()
        begin_s = moved_s = time.monotonic()
        sent = self.sink.sent
        while self._thread.is_alive() and time.monotonic() < min(moved_s + patience_s, begin_s + most_s):
            self._thread.join(_TURN_S)
            if self.sink.sent != sent:
                sent, moved_s = self.sink.sent, time.monotonic()
        self.end()

    def end(self) -> None:
        """Stop following; abandon an export under way, and wait 0.5 s at most for its thread."""
        self._over.set()
        if self._thread.is_alive() and not self._abandoned:
            self._abandoned = True
            self.sink.abandon()
            self._thread.join(_LAST_S)

    def _run(self) -> None:
        # The CPU is for a server on this machine, capture and decoding first.
        if sys.platform == "linux":  # where a thread has a priority of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
        while not self.error and not self._over.wait(_EVERY_S):
            self._guard(self._follow)

    def _give_rest(self, records: Records) -> None:
        """Give the sink the records that the follower did not, once that has ended; none after an error."""
        if self._follower.is_alive():
            self._follower.join()
        if not self.error:
            taken = np.concatenate([np.zeros(0, np.int64), *self._taken])
            rest = np.flatnonzero(~np.isin(records.index, taken))
            self._guard(lambda: self.sink.finish(records, rest))

    def _guard(self, call: Callable[[], None]) -> None:
        """Call the sink; what it raises is kept in `error`."""
        broken: list[Broken] = []
        make_guarded("otel", call, None, broken)
        if broken:
            self.error = broken[0].why

    def _follow(self) -> None:
        for part in self._tail.read():
            if self._over.is_set():
                return  # what is not taken is there at the end
            if part.is_counted:
                self._taken.append(part.index)
                self.sink.take(part, np.arange(len(part)))


def check_options(options: Options) -> None:
    """Raise UsageError without the otel extra, for a disabled SDK, two traceparents, or a shard's spans."""
    flag = _find_flag(options)
    if not flag:
        return
    try:  # now: a process is forked later
        if options.otel is not None:
            import loadgen.features.telemetry.spans
        if options.receive_spans is not None:
            import loadgen.features.telemetry.span_exports  # noqa: F401
    except ImportError:
        raise UsageError(f"{flag} needs the otel extra: {describe_install('otel')}") from None
    if options.otel is not None and os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        raise UsageError("--otel: OTEL_SDK_DISABLED switches the SDK off: unset it, or leave out --otel")
    if TRACEPARENT in {name.lower() for name in options.headers}:
        raise UsageError(f"{flag} {_OURS}: leave that --header out, or {flag}")
    if options.receive_spans is not None and options.shard is not None:
        raise UsageError(
            "--receive-spans: a server exports its spans to one place, so one shard of several would "
            "have them: leave it out, or --shard"
        )


def check_headers(options: Options, made: Plan) -> None:
    """Raise UsageError if the sessions' header would be a second traceparent."""
    flag = _find_flag(options)
    if flag and made.profile.session_header.lower() == TRACEPARENT:
        raise UsageError(f"{flag} {_OURS}: give --session-header another name")


def begin_telemetry(options: Options, stack: ExitStack) -> Callable[[PlanSender], PlanSender]:
    """Listen at given ports until `stack` ends; return what wraps a plan's sender. Raises UsageError."""
    page = receiver = None
    if options.prometheus is not None:
        from loadgen.features.telemetry.prometheus_page import PrometheusPage

        page = PrometheusPage(str(options.prometheus))
        stack.callback(page.server.close)
    if options.receive_spans is not None:
        from loadgen.features.telemetry.span_exports import SpanReceiver

        receiver = SpanReceiver(str(options.receive_spans))
        stack.callback(receiver.close)
        host = receiver.address.rpartition(":")[0].strip("[]")
        if is_unspecified(host) or not is_loopback(host):
            _LOG.warning("--receive-spans %s: every machine that reaches it can send spans", receiver.address)

    def wrap(sender: PlanSender) -> TelemetrySender:
        companion = TelemetrySender(options.otel, page, sender, receiver)
        if receiver is not None:
            stack.callback(receiver.close)  # before a server that was started: it may export once more
        stack.callback(companion.end)  # a signal may come before the last step
        return companion

    return wrap


def _find_flag(options: Options) -> str:
    """Return the flag for which requests carry a traceparent; "" without one."""
    flags = {"--otel": options.otel, "--receive-spans": options.receive_spans}
    return next((flag for flag, given in flags.items() if given is not None), "")


class TelemetrySender(PlanSender):
    """Has another sender send a plan, and gives its records to the sinks that were asked for meanwhile.

    With a receiver it takes the server's spans, and adds their times to the records once these are complete.
    """

    def __init__(
        self,
        otel: str | None,
        page: PrometheusPage | None,
        sender: PlanSender,
        receiver: SpanReceiver | None = None,
    ) -> None:
        self.otel, self.page, self.sender, self.receiver = otel, page, sender, receiver
        self.spans: SpanSink | None = None
        self.feed: Feed | None = None

    def describe(self, known: Facts, made: Plan) -> Facts:
        """Return the facts with where telemetry goes, and what ids and times of spans are made of."""
        known = self.sender.describe(known, made)
        spans = None
        if self.otel is not None or self.receiver is not None:
            key = os.urandom(KEY_BYTES).hex()
            spans = SpanFacts(
                key=key, wall_offset_ns=measure_realtime_offset_ns(), received=self.receiver is not None
            )
        self.known = replace(known, spans=spans, telemetry=tuple(self._list_places()))
        return self.known

    def wait(self, made: Plan, rest_s: float, display: Display) -> None:
        self.sender.wait(made, rest_s, display)

    def send(self, made: Plan, options: TransportOptions, watch: Watch) -> Outcome:
        """Send the plan, with a traceparent in each request if there are spans, and return its outcome."""
        self.feed = None
        if (spans := self.known.spans) is not None:
            options = replace(options, more_headers=TraceIds(bytes.fromhex(spans.key)).make_headers)
        if spans is not None and self.otel is not None:
            from loadgen.features.telemetry.spans import SpanSink

            self.spans = SpanSink(self.otel, self.known, spans)
            self.feed = Feed(self.spans, watch.journal)
        if self.page is not None:
            totals = watch.totals or LiveTotals()
            watch = replace(watch, totals=totals)
            self.page.begin(self.known, totals, watch.journal)
        if self.receiver is not None:
            self.receiver.spans.forget()
        watch = replace(watch, during=self._follow(watch.during))
        with ExitStack() as ending:
            ending.callback(self.end)
            self.outcome, self.display = self.sender.send(made, options, watch), watch.display
            ending.pop_all()  # `_finish` comes later
        return self.outcome

    def list_steps(self) -> tuple[tuple[str, Callable[[Facts], Facts]], ...]:
        return (*self.sender.list_steps(), ("the end of telemetry", self._finish))

    @contextmanager
    def _follow(self, during: AbstractContextManager[object]) -> Iterator[None]:
        """Start the threads inside `during`, once every process has been forked."""
        with during:
            if self.feed is not None:
                self.feed.start()
            if self.page is not None:
                self.page.server.serve()
            if self.receiver is not None:
                self.receiver.serve()
            yield

    def end(self) -> None:
        """End the threads of a run, if any."""
        if self.feed is not None:
            self.feed.end()
        if self.page is not None:
            self.page.server.stop()
        if self.receiver is not None:
            self.receiver.stop()

    def _finish(self, known: Facts) -> Facts:
        """Give the rest of the records away, and end it all; return the facts with what became of it."""
        try:
            most_s, broken = _HURRIED_S if self.outcome.interrupted else math.inf, list[Broken]()
            if self.feed is not None:
                with self.display.waiting("giving the last records to the collector"):
                    self.feed.finish(self.outcome.records, _PATIENCE_S, most_s)
            if self.page is not None:
                make_guarded("prometheus", partial(self.page.finish, self.outcome.records), None, broken)
            if self.page is not None and not self.outcome.interrupted:
                with self.display.waiting(
                    "until Prometheus has scraped the last figures", self.page.patience_s
                ):
                    self.page.wait_for_scrape()
            received = self._collect_spans()
        finally:
            self.end()
        errors = tuple(f"{part.name}: {part.why}" for part in broken)
        if self.feed is not None and self.feed.error:
            errors = (f"otel: {self.feed.error}", *errors)
        lost: tuple[str, ...] = ()
        count, spans = len(self.outcome.records), self.spans
        if spans is not None and (count > spans.sent or spans.reason):
            why = f": {spans.reason}" if spans.reason else ""
            what = format_count(count - spans.sent, "span") if count > spans.sent else "some metrics"
            lost = (f"otel: {what} of {format_count(count, 'request')} not taken by the collector{why}",)
        for line in (*lost, *errors, *received[1:]):
            _LOG.warning("%s", line)
        return replace(known, telemetry=(*self._list_places(), *received, *lost, *errors))

    def _collect_spans(self) -> tuple[str, ...]:
        """Wait for the server's last spans, add their times to the records, and describe what came.

        Until each success has one, or 7 s without a further one (2 s after a signal, 0 where gRPC was tried).
        """
        receiver, spans, records = self.receiver, self.known.spans, self.outcome.records
        if receiver is None or spans is None:
            return ()
        join = SpanJoin(records, TraceIds(bytes.fromhex(spans.key)))
        quiet_s = _HURRIED_S if self.outcome.interrupted else _BATCH_S
        try:
            with self.display.waiting("until the server has exported the last spans", quiet_s):
                moved_s, seen = time.monotonic(), -1
                while time.monotonic() < moved_s + quiet_s:
                    marks = join.mark(receiver.spans.read_rows())
                    if (count := int(marks.sum())) > seen:  # those of other clients may never end
                        moved_s, seen = time.monotonic(), count
                        if marks[records.ok].all():
                            break
                    if receiver.spans.speaks_grpc and not seen:
                        break
                    time.sleep(_POLL_S)
        finally:  # what came until a signal in the wait counts, too
            receiver.stop()
            rows = receiver.spans.read_rows()
            join.fill(rows)
        _, ours = join.match(rows)
        return tuple(_describe_received(join.mark(rows), len(rows) - int(ours.sum()), receiver))

    def _list_places(self) -> Iterator[str]:
        """Yield a line on each place that telemetry goes to, or is received at."""
        if self.otel is not None:
            place = self.otel
            if place == BY_ENVIRONMENT:
                named = next((name for name in _PLACES if os.environ.get(name)), "")
                place = f"the collector of {named}" if named else _DEFAULT
            yield f"otel: a span a request, and metrics, to {place}"
        if self.page is not None:
            yield f"prometheus: figures at http://{self.page.server.address}/metrics"
        if self.receiver is not None:
            yield f"spans: the server's received at http://{self.receiver.address}/v1/traces"


def _describe_received(marks: Bool, others: int, receiver: SpanReceiver) -> Iterator[str]:
    """Yield a line on the requests that have a span, then one on each reason why exports were not taken."""
    of = format_count(len(marks), "request")
    counts = ((others, "of other requests"), (receiver.spans.other, "of no request"))
    more = "".join(f", {count} {what}" for count, what in counts if count)
    yield f"spans: {int(marks.sum())} of {of} have the server's own{more}"
    if len(marks) and not (marks.any() or receiver.spans.refused):
        yield (
            f"spans: none has a {TRACEPARENT} of this run: what is in front of the server must pass it on"
            if others
            else f"spans: the server exports none here: {HOW_TO_EXPORT} http://{receiver.address}/v1/traces"
        )
    for why, count in receiver.spans.refused.items():
        yield f"spans: {format_count(count, 'export')} refused: {why}"
