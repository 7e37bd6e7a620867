"""What an exporter sends, whole and broken, in parts or at once, and what it is answered."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import loadgen
from builders.loops import loop_over, loop_over_named
from builders.made_cases import run
from fakes.scripted_server import Answer, Asked, ScriptedServer, api, closed_port, stream
from fakes.virtual_run import serving
from features.telemetry.test_server_spans import RECORDED
from loadgen import cli
from loadgen.facts.run_facts import SpanFacts
from loadgen.features.telemetry import telemetry_sender
from loadgen.features.telemetry.span_exports import (
    LARGEST_BODY,
    MOST_OPEN,
    MOST_SPANS,
    MOST_WAITING,
    ReceivedSpans,
    Refused,
    SpanReceiver,
)
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.run.command.progress import Display
from loadgen.run.firing import Outcome
from loadgen.run.measurement import PlanSender
from loadgen.transport.capture import Health

TAKEN = b"HTTP/1.1 200 OK\r\n"
# The head as the SDK 1.45.2 sends it by `requests`.
HEAD = (
    b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:4318\r\nUser-Agent: OTel-OTLP-Exporter-Python/1.45.2\r\n"
    b"Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n"
    b"Content-Type: application/x-protobuf\r\n"
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x18\x04\x00\x00\x00\x00\x00"
REQUESTS = 6
COLUMNS = ("queue", "first_token", "ttft", "prefill", "decode")
PASS_ON = "spans: none has a traceparent of this run: what is in front of the server must pass it on"
QUEUE_S, PREFILL_S, DECODE_S, HTTP_S = 0.001, 0.02, 0.5, 0.003

_HEADER = re.compile(r"(?mi)^traceparent: 00-([0-9a-f]{32})-([0-9a-f]{16})-01\r?$")
_NAMES = ("time_in_queue", "time_to_first_token", "time_in_model_prefill", "time_in_model_decode")


@dataclass
class SpanExporter:
    """Exports to a port of this machine, over one connection, a batch at a time; every other one is gzip."""

    port: int
    noted: int = 0  # requests
    zipped: bool = False
    spans: list[tuple[bytes, tuple[float, ...]]] = field(default_factory=list)  # waiting: trace, times in s
    statuses: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, asked: Asked) -> None:
        """Have a request's span wait for the next batch; its queue is a millisecond longer each time."""
        if (found := _HEADER.search(asked.head)) is not None:
            with self.lock:
                self.noted += 1
                queue_s = QUEUE_S * self.noted
                times = queue_s, HTTP_S + queue_s + PREFILL_S, PREFILL_S, DECODE_S
                self.spans.append((bytes.fromhex(found[1]), times))

    def export(self) -> None:
        """Export what waits, and a span of the server's start."""
        with self.lock:
            waiting, self.spans = self.spans, []
        sent = ExportTraceServiceRequest()
        scope = sent.resource_spans.add().scope_spans.add()
        scope.spans.add(name="Load model", trace_id=bytes(16), span_id=bytes(8))
        for trace, times in waiting:
            span = scope.spans.add(name="llm_request", trace_id=trace, span_id=b"fakespan")
            for name, time_s in zip(_NAMES, times, strict=True):
                span.attributes.add(key=f"gen_ai.latency.{name}").value.double_value = time_s
        body, headers = sent.SerializeToString(), {"Content-Type": "application/x-protobuf"}
        self.zipped = not self.zipped
        if self.zipped:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/v1/traces", body, headers)
        self.statuses.append(connection.getresponse().status)
        connection.close()


@pytest.fixture
def receiver() -> Iterator[SpanReceiver]:
    found = SpanReceiver(f"127.0.0.1:{closed_port()}")
    found.serve()
    yield found
    found.close()


def connect(receiver: SpanReceiver) -> socket.socket:
    host, _, port = receiver.address.rpartition(":")
    return socket.create_connection((host, int(port)), 20)


def send(receiver: SpanReceiver, *reads: bytes) -> bytes:
    """Send over one connection, end it, and return all that is answered."""
    with connect(receiver) as connection:
        for read in reads:
            connection.sendall(read)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def post(body: bytes, head: bytes = HEAD, more: bytes = b"") -> bytes:
    return head + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def zipped(body: bytes) -> bytes:
    return post(gzip.compress(body), more=GZIP)


def cut(data: bytes, at: int) -> list[bytes]:
    return [data[begin : begin + at] for begin in range(0, len(data), at)]


GZIP = b"Content-Encoding: gzip\r\n"


@loop_over_named(
    ("reads", "batches"),
    {
        "at once": ([post(RECORDED)], 1),
        "in small parts": (cut(post(RECORDED), 7), 1),
        "two in a read": ([post(RECORDED) + zipped(RECORDED)], 2),
        "kept alive, gzip": (cut(zipped(RECORDED) * 3, 1000), 3),
        "identity": ([post(RECORDED, more=b"Content-Encoding: identity\r\n")], 1),
        "after a refused one": ([post(b"\xff" * 9) + post(RECORDED)], 1),
        "one that closes": ([post(RECORDED, HEAD.replace(b"keep-alive", b"close"))], 1),
    },
)
def test_an_export_is_taken(receiver: SpanReceiver, reads: Sequence[bytes], batches: int) -> None:
    receiver.spans.forget()
    assert send(receiver, *reads).count(TAKEN) == batches
    assert len(receiver.spans.read_rows()) == 4 * batches


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def part(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


@loop_over_named(
    ("sent", "status", "says"),
    {
        "no protobuf": (post(b"\xff" * 9), 400, "a damaged body"),
        "truncated": (post(RECORDED[:-1]), 400, "a damaged body"),
        "no gzip": (post(b"plain", more=GZIP), 400, "damaged gzip"),
        "truncated gzip": (post(gzip.compress(RECORDED)[:-5], more=GZIP), 400, "damaged gzip"),
        "more than gzip": (post(gzip.compress(RECORDED) + b"x", more=GZIP), 400, "damaged gzip"),
        "a gzip bomb": (zipped(bytes(LARGEST_BODY + 1)), 413, "a body of over 8 MiB"),
        "spans of nothing": (zipped(part(1, part(2, b"\x12\0" * 70_000))), 413, "of over 65,536 spans"),
        "an endless path": (b"POST /" + b"x" * 65_531, 414, "Too Long"),
        "an endless name": (HEAD + b"x" * 65_537, 431, "Line too long"),
        "endless headers": (HEAD + b"x: y\r\n" * 95, 431, "Too many headers"),
        "huge": (HEAD + b"Content-Length: 8388609\r\n\r\n", 413, "a body of over 8 MiB"),
        "no length": (HEAD + b"\r\n", 411, "a body without its length"),
        "a wrong length": (HEAD + b"Content-Length: -1\r\n\r\n", 411, "a body without its length"),
        "chunked": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411, "with Content-Length"),
        "brotli": (post(b"x", more=b"Content-Encoding: br\r\n"), 415, "content encoding 'br'"),
        "JSON": (post(b"{}", HEAD.replace(b"x-protobuf", b"json")), 415, "application/json, not applic"),
        "no type": (post(b"", b"POST /v1/traces HTTP/1.1\r\nHost: x\r\n"), 415, "no type, not"),
        "no path": (post(RECORDED, HEAD.replace(b"/v1/traces", b"/")), 404, "'/': give the endpoint with /"),
        "metrics": (post(RECORDED, HEAD.replace(b"traces", b"metrics")), 404, "'/v1/metrics'"),
        "a browser": (b"GET /v1/traces HTTP/1.1\r\nHost: x\r\n\r\n", 501, "Unsupported method ('GET')"),
        "nearly gRPC's": (b"PRIOR nonsense\r\n\r\n", 0, "Bad"),
        "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 0, "TLS: give the endpoint as http://"),
        "gRPC": (PREFACE, 0, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"),
    },
)
def test_what_is_no_export_is_answered_and_counted(
    receiver: SpanReceiver, sent: bytes, status: int, says: str
) -> None:
    receiver.spans.forget()
    answered = send(receiver, sent)
    assert answered.startswith(b"HTTP/1.1 %d " % status if status else b"")
    assert len(receiver.spans.read_rows()) == 0
    (why,) = receiver.spans.refused
    assert says in why
    assert answered.endswith(why.encode() if status else b"")
    assert receiver.spans.speaks_grpc == (sent == PREFACE)


def test_a_cut_off_export_is_not_taken(receiver: SpanReceiver) -> None:
    whole = post(RECORDED)
    for end in (0, 20, len(HEAD), len(whole) - 200, len(whole) - 1):
        send(receiver, whole[:end])
        assert len(receiver.spans.read_rows()) == 0


def test_bodies_that_are_not_whole_wait_in_little_memory(receiver: SpanReceiver) -> None:
    head = HEAD + b"Content-Length: %d\r\n\r\n" % LARGEST_BODY
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_WAITING // LARGEST_BODY):
            stack.enter_context(connect(receiver)).sendall(head)
        while receiver.spans._waiting < MOST_WAITING:
            time.sleep(0.01)
        assert b"503" in send(receiver, post(RECORDED))
    while receiver.spans._waiting:
        time.sleep(0.01)
    assert send(receiver, post(RECORDED)).startswith(TAKEN)
    assert receiver.spans.refused == {"no room: over 32 MiB wait": 1}


def test_the_oldest_of_many_connections_makes_room(receiver: SpanReceiver) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(receiver)) for _ in range(MOST_OPEN)]
        assert send(receiver, post(RECORDED)).startswith(TAKEN)
        assert slow[0].recv(1) == b""


def test_two_million_spans_are_kept() -> None:
    spans = ReceivedSpans()
    spans.take(RECORDED)
    spans._rows *= MOST_SPANS // 4
    with pytest.raises(Refused, match=r"no room: 2,097,152 spans are kept"):
        spans.take(RECORDED)
    assert len(spans.read_rows()) == MOST_SPANS


def test_reasons_are_few_whatever_is_sent(receiver: SpanReceiver) -> None:
    send(receiver, *[post(RECORDED, HEAD.replace(b"/v1/traces", b"/%d" % n)) for n in range(50)])
    assert (len(receiver.spans.refused), sum(receiver.spans.refused.values())) == (9, 50)
    assert receiver.spans.refused["other reasons"] == 42


def bench(base_url: str, place: Path, **more: Any) -> Result:
    load: dict[str, Any] = {"max_concurrency": 2, "input_len": 4, "output_len": 3, "num_warmups": 0}
    loadgen.bench(base_url, run_dir=str(place), num_prompts=REQUESTS, **load, **more)
    (directory,) = place.iterdir()
    return run_directory.load(directory)


def check_times(run: Result) -> None:
    """Each request has the times of its own span."""
    records = run.records
    queue_ns = records.server_queue_ns
    assert sorted(queue_ns.tolist()) == [round(QUEUE_S * 1e9) * (1 + place) for place in range(len(records))]
    rest_ns = round((HTTP_S + PREFILL_S) * 1e9)
    assert np.abs(records.server_first_token_ns - queue_ns - rest_ns).max() <= 1
    assert set(records.server_prefill_ns.tolist()) == {round(PREFILL_S * 1e9)}
    assert records.server_ttft_ns.tolist() == records.server_prefill_ns.tolist()
    assert set(records.server_decode_ns.tolist()) == {round(DECODE_S * 1e9)}


def test_each_request_of_a_call_gets_its_span(tmp_path: Path) -> None:
    before, exporter = set(threading.enumerate()), SpanExporter(closed_port())

    def answer(asked: Asked) -> Answer:
        exporter.note(asked)
        exporter.export()
        return stream(3, 0.01)

    with serving(api(answer)) as server:
        run = bench(server.base_url, tmp_path, receive_spans=str(exporter.port))
    check_times(run)
    assert exporter.statuses == [200] * REQUESTS
    assert run.facts.telemetry == (
        f"spans: the server's received at http://127.0.0.1:{exporter.port}/v1/traces",
        f"spans: 6 of 6 requests have the server's own, {REQUESTS} of no request",
    )
    assert {each.name for each in set(threading.enumerate()) - before} == set()
    socket.create_server(("127.0.0.1", exporter.port)).close()


def test_a_signal_in_the_wait_keeps_the_spans_that_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = SpanExporter(closed_port())

    def answer(asked: Asked) -> Answer:
        if exporter.noted < 4:
            exporter.note(asked)
            exporter.export()
        return stream(3, 0.01)

    def stop(wait_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(telemetry_sender, "time", SimpleNamespace(monotonic=time.monotonic, sleep=stop))
    with serving(api(answer)) as server, contextlib.suppress(KeyboardInterrupt):
        bench(server.base_url, tmp_path, receive_spans=str(exporter.port))
    (directory,) = tmp_path.iterdir()
    run = run_directory.load(directory)
    assert (run.records.server_queue_ns > 0).sum() == 4
    assert "before the end of telemetry was known" in " ".join(run.facts.notes)


def test_spans_of_other_clients_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A server that others use, too, exports without end."""
    clock_s, spans = [0.0], ReceivedSpans()

    def pass_time(wait_s: float) -> None:
        clock_s[0] += wait_s
        spans.take(RECORDED)
        assert clock_s[0] < 60

    fake = SimpleNamespace(monotonic=lambda: clock_s[0], sleep=pass_time)
    monkeypatch.setattr(telemetry_sender, "time", fake)
    receiver = SpanReceiver(f"127.0.0.1:{closed_port()}")
    request.addfinalizer(receiver.close)
    receiver.spans = spans
    sender = telemetry_sender.TelemetrySender(None, None, PlanSender(), receiver)
    sender.known = run(spans=SpanFacts(key="00" * 16, wall_offset_ns=0)).facts
    sender.outcome, sender.display = Outcome(run().records, Health(0, 0, 0, 0)), Display()
    (line, _) = sender._collect_spans()
    assert line.startswith(f"spans: 0 of {len(sender.outcome.records)} requests have the server's own, ")
    assert 7 <= clock_s[0] < 8


@pytest.mark.whole
@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (PREFACE[:24], "1 export refused: gRPC, which is not taken: start the server with"),
        (
            b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
            "1 export refused: exports to '/': give the endpoint",
        ),
        (b"", "the server exports none here: start vLLM or SGLang"),
    ],
)
def test_a_server_without_spans_is_explained_once(
    sent: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_sender, "_BATCH_S", 0.2)
    port, told = closed_port(), threading.Event()

    def answer(asked: Asked) -> Answer:
        if sent and "traceparent" in asked.head and not told.is_set():
            told.set()
            with socket.create_connection(("127.0.0.1", port)) as exporter:
                exporter.sendall(sent)
                exporter.recv(1)
        return stream(3, 0.01)

    with serving(api(answer)) as server:
        run = bench(server.base_url, tmp_path, receive_spans=str(port))
    assert "spans: 0 of 6 requests have the server's own" in run.facts.telemetry
    assert [says in line for line in run.facts.telemetry] == [False, False, True]
    assert {getattr(run.records, f"server_{name}_ns").max() for name in COLUMNS} == {-1}


@loop_over(
    ("ours", "others", "lines"),
    [
        ([True, False], 1, ["spans: 1 of 2 requests have the server's own, 1 of other requests"]),
        ([False, False], 3, ["spans: 0 of 2 requests have the server's own, 3 of other requests", PASS_ON]),
    ],
)
def test_spans_of_other_requests_are_explained(ours: list[bool], others: int, lines: list[str]) -> None:
    receiver = SpanReceiver(f"127.0.0.1:{closed_port()}")
    described = telemetry_sender._describe_received(np.array(ours), others, receiver)
    assert list(described) == lines
    receiver.close()


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("flags", [(), ("--workers", "2"), ("--transport", "httpx"), ("--repeat", "2")])
def test_a_batch_that_comes_after_the_last_answer_is_waited_for(
    flags: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two servers that export to one place, as vLLM does: seconds later."""
    exporter, ended = SpanExporter(closed_port()), threading.Event()

    def answer(asked: Asked) -> Answer:
        exporter.note(asked)
        return stream(3, 0.01)

    def export_late() -> None:
        while not ended.wait(1.0):
            exporter.export()

    with ScriptedServer(api(answer)) as first, ScriptedServer(api(answer)) as second:
        thread = threading.Thread(target=export_late)
        thread.start()
        begin_s = time.monotonic()
        load = ["--random-input-len", "4", "--random-output-len", "3", "--num-prompts", "8"]
        where = ["--base-url", first.base_url, "--base-url", second.base_url, "--run-dir", str(tmp_path)]
        receive = ["--receive-spans", str(exporter.port), "--max-concurrency", "2", "--num-warmups", "2"]
        assert cli.main(["bench", *where, *load, *receive, *flags]) == 0
        assert time.monotonic() - begin_s < 30
        ended.set()
        thread.join()
    assert set(exporter.statuses) == {200}
    for directory in filter(Path.is_dir, tmp_path.iterdir()):
        run = run_directory.load(directory)
        assert "spans: 8 of 8 requests have the server's own" in " ".join(run.facts.telemetry)
        assert (run.records.server_first_token_ns > run.records.server_queue_ns).all()
        assert (run.records.server_queue_ns > 0).all()
    assert "WARNING" not in capfd.readouterr().err
