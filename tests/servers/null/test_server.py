"""The null server tells the truth: what it logs is what a client could at best have seen."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from builders.required import require
from fakes.scripted_server import drive, job_of, target_of
from fakes.supervised import PATIENCE_S
from loadgen.records.decode import Decoder
from loadgen.server.control import ServerProbe
from loadgen.server.exchange import ServerAddress
from loadgen.transport.sending.job import Target
from loadgen.wire.openai import DIALECTS

pytestmark = pytest.mark.whole
SERVERS = Path(__file__).parents[3] / "servers"
MS = 1_000_000


@dataclass
class Null:
    """A null server under way; `log` is filled in when it has ended."""

    base_url: str
    log: list[dict[str, Any]]

    def target(self, path: str = "/v1/completions") -> Target:
        return replace(target_of("127.0.0.1", int(self.base_url.rpartition(":")[2])), path=path)


@contextmanager
def null_server(directory: Path, *words: str) -> Iterator[Null]:
    log = directory / "log.jsonl"
    command = [sys.executable, "-m", "loadgen_servers.null", "--log", str(log), *words]
    environment = {**os.environ, "PYTHONPATH": str(SERVERS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        server = Null(msgspec.json.decode(require(process.stdout).readline())["base_url"], [])
        yield server
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    server.log += [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]


@pytest.mark.parametrize("dialect", ["completions", "chat"])
@pytest.mark.parametrize("interval", ["3", "0"])
def test_the_client_and_the_log_agree_on_every_request(dialect: str, interval: str, tmp_path: Path) -> None:
    body = b'{"stream":true,"prompt":[1,2,3],"max_tokens":6}'
    with null_server(tmp_path, "--ttft-ms", "5", "--interval-ms", interval) as server:
        target = server.target(DIALECTS[dialect].path)
        driven = drive(job_of(target, 12, 4, body=lambda _: body, request_id_prefix="r"))
    rows = {row["request_id"]: row for row in server.log}
    assert set(rows) == {f"r{i}" for i in range(12)}
    decoder = Decoder(DIALECTS[dialect], streamed=True)
    for capture in driven.captures:
        record, row = decoder.decode(capture), rows[f"r{capture.index}"]
        assert record.failure is None
        assert record.output_tokens == len(row["wrote_ns"]) == len(record.arrival_ns) == 6
        # CLOCK_REALTIME is bracketed, not read together: some microseconds either way.
        assert record.sent_ns <= row["received_ns"] + MS // 10
        late_ns = record.arrival_ns - np.array(row["wrote_ns"])
        assert late_ns.min() > -MS // 10
        assert row["wrote_ns"][0] - row["received_ns"] >= 5 * MS - MS // 10
        if interval == "3":
            assert late_ns.min() < MS  # a busy machine delays some


# Flags of a shape; reads at least, and messages with a token, of a response of 9 tokens.
SHAPES = [
    ("", 9, 9), ("--tokens-per-message 3", 3, 3), ("--messages-per-write 3", 3, 9), ("--pieces 3", 25, 9),
    ("--extra ping", 18, 9), ("--stall-ms 40", 9, 9),
]  # fmt: skip


@pytest.mark.parametrize(("words", "reads", "messages"), SHAPES)
def test_the_log_is_true_of_every_shape_and_each_message_says_the_same(
    words: str, reads: int, messages: int, tmp_path: Path
) -> None:
    body = b'{"stream":true,"prompt":[1,2,3],"max_tokens":9}'
    with null_server(tmp_path, "--ttft-ms", "2", "--interval-ms", "10", *words.split()) as server:
        driven = drive(job_of(server.target(), 24, 4, body=lambda _: body, request_id_prefix="r"))
    rows = {row["request_id"]: row["wrote_ns"] for row in server.log}
    # Where reads ended, in any of the many answers, which are alike: a busy machine lets some coalesce.
    ends: set[int] = set()
    for capture in driven.captures:
        record, wrote_ns = Decoder(DIALECTS["completions"], True).decode(capture), rows[f"r{capture.index}"]
        assert (record.failure, record.output_tokens, len(record.arrival_ns)) == (None, 9, messages)
        assert [int(said) for said in re.findall(rb'"text":"[^"]* (\d+)"', capture.raw)] == wrote_ns
        late_ns = record.arrival_ns - np.array(wrote_ns)
        assert late_ns.min() > -MS // 10
        if "stall" in words:
            assert np.diff(wrote_ns).max() >= 40 * MS
        ends.update(capture.read_ends().tolist())
    assert len({len(capture.raw) for capture in driven.captures}) == 1
    assert len(ends) >= reads


def test_it_ends_with_its_standard_input() -> None:
    command = [sys.executable, "-m", "loadgen_servers.null", "--exit-with-stdin"]
    environment = {**os.environ, "PYTHONPATH": str(SERVERS)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        assert require(process.stdout).readline().startswith(b'{"base_url":')
        require(process.stdin).close()
        assert process.wait(PATIENCE_S) == 0


def test_it_is_ready_names_its_model_and_knows_no_other_path(tmp_path: Path) -> None:
    with null_server(tmp_path) as server:
        access = ServerAddress(server.base_url)
        served = ServerProbe(access).ask(None, PATIENCE_S)
        assert (served.engine.name, served.model) == ("loadgen null server", "null")
        driven = drive(job_of(server.target("/v1/embeddings"), 1, 1))
        assert driven.captures[0].raw.startswith(b"HTTP/1.1 404")
    assert server.log == []


@pytest.mark.parametrize(("body", "status"), [
    (b'{"prompt":[1],"max_tokens":2}', 400),
    (b'{"stream":true,"prompt":"text"}', 200),
    (b'{"stream":true,"prompt":[1],"max_tokens":1}', 200),
    (b'{"stream":true,"prompt":[1],"max_tokens":-1}', 400),
    (b'{"stream":true,"prompt":[1],"max_tokens":1000001}', 400),
    (b"no JSON", 400), (b'{"stream":true,"max_tokens":"x"}', 400), (b"[]", 400),
])  # fmt: skip
def test_requests_it_takes_and_those_that_it_outlives(body: bytes, status: int, tmp_path: Path) -> None:
    bodies = [body, b'{"stream":true,"prompt":[1],"max_tokens":2}']
    with null_server(tmp_path, "--ttft-ms", "0", "--interval-ms", "0") as server:
        first, second = drive(job_of(server.target(), 2, 1, body=lambda index: bodies[index])).captures
    assert first.raw.startswith(f"HTTP/1.1 {status}".encode())
    assert second.raw.startswith(b"HTTP/1.1 200")


def test_a_client_that_goes_away_takes_only_its_own_stream_along(tmp_path: Path) -> None:
    with null_server(tmp_path, "--ttft-ms", "1", "--interval-ms", "2") as server:
        target = server.target()
        with socket.create_connection(("127.0.0.1", target.port)) as sock:
            sock.sendall(
                job_of(target, 1, body=lambda _: b'{"stream":true,"max_tokens":500}').make_request(0)
            )
            assert sock.recv(10) == b"HTTP/1.1 2"
        body = b'{"stream":true,"prompt":[1],"max_tokens":9}'
        driven = drive(job_of(target, 4, 2, body=lambda _: body, request_id_prefix="r"))
        assert [capture.failure for capture in driven.captures] == [None] * 4
    assert {row["request_id"] for row in server.log} == {"r0", "r1", "r2", "r3"}


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [sys.executable, "-m", "loadgen_servers.null", "--port", str(taken.getsockname()[1])],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(SERVERS)},
        )
    assert done.returncode == 1
    assert done.stderr.startswith("null server: cannot listen on 127.0.0.1:")
