"""Telemetry of whole runs: a collector and a scraper get what the records say; none can harm a run."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fakes import surroundings
from fakes.otlp_receiver import OtlpReceiver, read_attributes
from fakes.scripted_server import Answer, Asked, ScriptedServer, api, closed_port, stream, whole
from loadgen import cli
from loadgen.features.telemetry.server_spans import TraceIds
from loadgen.report import run_directory
from loadgen.report.run_directory import Result

pytestmark = [
    pytest.mark.whole,
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
TOKENS, REQUESTS = 4, 60
LOAD = ["--random-input-len", "8", "--random-output-len", str(TOKENS), "--num-warmups", "2"]
_HEADER = re.compile(r"(?mi)^traceparent: (\S+)\r?$")


def answer(asked: Asked) -> Answer:
    """Some fail, so that spans of errors are among them."""
    return Answer([whole(b"{}", "500 Oops")]) if asked.number % 20 == 19 else stream(TOKENS, 0.004)


def bench(server: ScriptedServer, place: Path, *flags: str) -> int:
    load = [*LOAD, "--num-prompts", str(REQUESTS), "--max-concurrency", "4"]
    return cli.main(["bench", "--base-url", server.base_url, *load, "--run-dir", str(place), *flags])


def loaded(place: Path) -> Result:
    (directory,) = place.iterdir()
    return run_directory.load(directory)


def headers_of(server: ScriptedServer) -> list[str]:
    posts = [asked.head for asked in server.asked if asked.head.startswith("POST")]
    return [found[1] for head in posts if (found := _HEADER.search(head))]


@pytest.mark.parametrize(
    "flags", [(), ("--workers", "2"), ("--transport", "httpx"), ("--shard", "1/3", "--seed", "1")]
)
def test_spans_are_the_records_and_the_headers(flags: tuple[str, ...], tmp_path: Path) -> None:
    with ScriptedServer(api(answer)) as server, OtlpReceiver() as collector:
        bench(server, tmp_path, "--otel", collector.url, *flags)
        run = loaded(tmp_path)
    records, made = run.records, run.facts.spans
    assert made is not None
    spans = {read_attributes(span)["loadgen.request.index"]: span for span in collector.spans}
    assert len(collector.spans) == len(spans) == len(records)
    assert spans.keys() == set(records.index.tolist())
    ids, offset_ns = TraceIds(bytes.fromhex(made.key)), made.wall_offset_ns
    for row, index in enumerate(records.index.tolist()):
        span, trace = spans[index], ids.find(index)
        assert (int.from_bytes(span.trace_id), int.from_bytes(span.span_id)) == trace
        assert span.start_time_unix_nano == records.sent_ns[row] + offset_ns
        assert span.end_time_unix_nano == records.end_ns[row] + offset_ns
        arrived = records.arrival_ns[records.start[row] : records.start[row + 1]] + offset_ns
        assert [event.time_unix_nano for event in span.events] == arrived.tolist()
        assert (span.status.code == 2) == (records.failures[row] is not None)
    named = [f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01" for span in spans.values()]
    assert sorted(set(headers_of(server))) == sorted(named)
    duration = collector.metrics["gen_ai.client.operation.duration"].histogram.data_points
    assert sum(point.count for point in duration) == len(records)
    took_s = (records.end_ns - records.sent_ns).sum() / 1e9
    assert sum(point.sum for point in duration) == pytest.approx(took_s)
    assert {resource["service.name"] for resource in collector.resources} == {"loadgen"}
    assert run.facts.telemetry == (f"otel: a span a request, and metrics, to {collector.url}",)


def test_turns_and_repeated_runs_have_traces_of_their_own(tmp_path: Path) -> None:
    roles = ["user", "assistant"] * 3
    rows = [
        {"conversation_id": f"c{name}", "turn": turn + 1, "role": role, "content": f"{name} {turn}"}
        for name in range(5)
        for turn, role in enumerate(roles)
    ]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    talks = ["--backend", "openai-chat", "--dataset-path", str(tmp_path / "talks.jsonl"), "--repeat", "2"]
    with ScriptedServer(api(lambda _: stream(TOKENS, 0.001))) as server, OtlpReceiver() as collector:
        where = ["--base-url", server.base_url, "--run-dir", str(tmp_path / "runs"), "--otel", collector.url]
        assert cli.main(["bench", *where, *talks, "--turn-delays", "none", "--num-warmups", "0"]) == 0
        named = [f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01" for span in collector.spans]
        assert sorted(headers_of(server)) == sorted(set(named))
    assert len(named) == 2 * 5 * 3
    assert {read_attributes(span)["gen_ai.operation.name"] for span in collector.spans} == {"chat"}
    sessions = [read_attributes(span)["gen_ai.conversation.id"] for span in collector.spans]
    assert len(set(sessions)) == 10


def test_off_no_header_is_sent_and_nothing_is_noted(tmp_path: Path) -> None:
    with ScriptedServer(api(answer)) as server:
        bench(server, tmp_path)
        assert headers_of(server) == []
    facts = loaded(tmp_path).facts
    assert (facts.telemetry, facts.spans) == ((), None)


@pytest.mark.parametrize(
    ("collector", "why"),
    [
        (None, "Connection refused"),
        (OtlpReceiver(400), "Failed to export"),
        (OtlpReceiver(), "it took too long"),
    ],
    ids=["dead", "refuses", "hangs"],
)
def test_a_collector_that_takes_nothing_is_one_note(
    collector: OtlpReceiver | None, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{closed_port()}" if collector is None else collector.url
    if collector and "too long" in why:
        collector.held.clear()
    with ScriptedServer(api(lambda _: stream(TOKENS, 0.004))) as server, collector or nullcontext():
        begin_s = time.monotonic()
        assert bench(server, tmp_path, "--otel", url, "--quiet") == 0
        assert time.monotonic() - begin_s < 12
    run = loaded(tmp_path)
    assert int(run.records.ok.sum()) == REQUESTS
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "otel" in line)
    assert f"otel: {REQUESTS} spans of {REQUESTS} requests not taken by the collector: {why}" in line
    assert line.partition("otel")[2] in " ".join(run.facts.telemetry)


def test_a_key_that_the_server_echoes_is_in_no_span(tmp_path: Path) -> None:
    key = "sk-telemetry-4711-secret"
    echo = Answer([whole(b'{"error":{"message":"no key %b"}}' % key.encode(), "400 Bad Request")])
    with ScriptedServer(api(lambda asked: echo)) as server, OtlpReceiver() as collector:
        more = ["--header", f"X-Key={key}", "--num-warmups", "0", "--max-consecutive-failures", "0"]
        bench(server, tmp_path, "--otel", collector.url, *more)
    assert collector.spans
    assert {span.status.code for span in collector.spans} == {2}
    assert all("no key" in span.status.message for span in collector.spans)
    assert key not in repr(collector.spans)


def scrape(port: int) -> dict[str, float] | None:
    """The samples of a scrape without buckets; None if nothing listens yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as got:
            lines = got.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return None
    pairs = (line.rpartition(" ") for line in lines if line[0] != "#")
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_scrapes_grow_with_the_run_and_end_with_its_records(workers: str, tmp_path: Path) -> None:
    port, scrapes, over = closed_port(), list[dict[str, float]](), threading.Event()

    def follow() -> None:
        while not over.wait(0.05):
            if found := scrape(port):
                scrapes.append(found)

    thread = threading.Thread(target=follow)
    thread.start()
    with ScriptedServer(api(lambda _: stream(TOKENS, 0.03))) as server:
        bench(server, tmp_path, "--prometheus", str(port), "--workers", workers)
    over.set()
    thread.join()
    run, last = loaded(tmp_path), scrapes[-1]
    counted = [found['loadgen_requests_total{outcome="ok"}'] for found in scrapes]
    assert all(earlier <= later for earlier, later in pairwise(counted))
    assert 0 < sorted(counted)[len(counted) // 2] < REQUESTS  # while it ran
    metrics, records = run.metrics, run.records
    ended = (metrics.completed, metrics.total_input_tokens, metrics.total_output_tokens)
    names = ('requests_total{outcome="ok"}', "input_tokens_total", "output_tokens_total")
    assert tuple(last[f"loadgen_{name}"] for name in names) == ended
    ttft_s = (records.arrival_ns[records.start[:-1]] - records.sent_ns).sum() / 1e9
    assert last["loadgen_ttft_seconds_sum"] == pytest.approx(ttft_s)
    assert last["loadgen_itl_seconds_count"] == len(records.arrival_ns) - REQUESTS
    assert last["loadgen_requests_sent_total"] == REQUESTS
    assert (last["loadgen_run_over"], last["loadgen_requests_in_flight"]) == (1, 0)
    assert run.facts.telemetry == (f"prometheus: figures at http://127.0.0.1:{port}/metrics",)
    assert scrape(port) is None


def test_without_the_extra_the_way_to_get_it_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; from loadgen.cli import run; run()"
    words = [sys.executable, "-c", code, "bench", "--base-url", "http://127.0.0.1:1", "--otel"]
    done = surroundings.ended(surroundings.started(words, tmp_path))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--otel needs the otel extra: in the clone, .venv/bin/pip install '.[otel]'" in done.err


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    service, port = surroundings.Service(lambda _: stream(TOKENS, 0.05)), closed_port()
    with service.serving(), OtlpReceiver() as collector:
        flags = ["--otel", collector.url, "--prometheus", str(port)]
        client = surroundings.started(surroundings.argv(service.base_url, 10_000, *flags), tmp_path)
        service.until(12)
        assert scrape(port) is not None
        client.send_signal(signal.SIGINT)
        done = surroundings.ended(client)
    assert done.code == 128 + signal.SIGINT
    assert scrape(port) is None
    (directory,) = (tmp_path / "runs").iterdir()
    records = run_directory.load(directory).records
    assert len(collector.spans) == len(records)
    assert np.isin(
        [read_attributes(one)["loadgen.request.index"] for one in collector.spans], records.index
    ).all()
