"""What becomes of a run whose server answers every third request badly: one table, over both transports."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_cases, recorded
from builders.loops import loop_over
from fakes import faults_table
from fakes.faults import (
    INPUT,
    OUTPUT,
    Ending,
    Fault,
    FaultyServer,
    K,
    fails,
    meets,
    raw,
    refused,
    whole_answer,
)
from fakes.scripted_server import (
    PATIENCE_S,
    Answer,
    Driven,
    End,
    drive,
    job_of,
    records,
)
from fakes.virtual_network import VirtualServer
from loadgen.figures.distribution import Distribution
from loadgen.figures.metrics import Metrics, compute_metrics
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Limits
from loadgen.verdict.evidence import RunEvidence
from loadgen.wire.openai import Dialect

FAULTS = [fault for section in faults_table.SECTIONS.values() for fault in section]
OF_CONNECTIONS = [fault for fault in FAULTS if re.match("closed|reset|half-closed", fault.name)]
MANY_FAILURES = "many-failures"
# The doubts that answers alone raise: the others are of the machine that this runs on, or of few requests.
ABOUT_ANSWERS = {MANY_FAILURES, "failures", "answer-lengths", "early-ends", "prompt-lengths"}
ABOUT_ANSWERS |= {"tokens-far-off", "prefix-cache", "many-resent"}
S_NS = 1_000_000_000
SLACK_S = 2.0  # of a busy machine, beyond what a timeout takes
MOST_STORED_BYTES = 1_000_000  # of a run of six requests, whatever the server wrote


@dataclass(frozen=True)
class Played:
    """What came of one row over one transport."""

    rows: list[Record]
    case: RunEvidence

    @cached_property
    def result(self) -> Result:
        return Result(self.case.facts, self.case.records)


def play(fault: Fault, transport: str, server: FaultyServer | VirtualServer) -> Played:
    """A run of one slot against a server with the fault."""
    limits = Limits(
        request_timeout_ns=int(fault.request_s * S_NS), stall_timeout_ns=int(fault.stall_s * S_NS)
    )
    if fault.answer_bytes:
        limits = replace(limits, answer_bytes=fault.answer_bytes)
    dialect = recorded.APIS[fault.api]
    with server:
        job = job_of(server.target(), fault.requests, 1, limits=limits, token_seen=dialect.has_token)
        driven = drive(job, transport, server if isinstance(server, VirtualServer) else None)
    return judged(driven, fault.requests, dialect)


def judged(driven: Driven, requests: int, dialect: Dialect | None = None) -> Played:
    """The run with its figures and doubts."""
    rows = records(driven, dialect)
    for row in rows:
        row.planned_input, row.planned_output = INPUT, OUTPUT
    workload = {"input_len": INPUT, "output_len": OUTPUT, "num_prompts": requests, "max_concurrency": 1}
    case = made_cases.run(rows, workload, requests=requests, window=None, calibration=None, ceiling=None)
    return Played(rows, case)


def distributions(metrics: Metrics) -> dict[str, Distribution]:
    """Every latency."""
    values = {name: getattr(metrics, name) for name in metrics.__struct_fields__}
    return {name: value for name, value in values.items() if isinstance(value, Distribution)}


def numbers(value: object) -> list[float]:
    """Every number in a JSON value."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers(each)]
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return [value] if isinstance(value, int | float) else []


def assert_counts_add_up(played: Played, fault: Fault, ending: Ending) -> None:
    assert [row.index for row in played.rows] == list(range(fault.requests))
    kinds: Counter[FailureKind | None] = Counter(
        row.failure.kind if row.failure else None for row in played.rows
    )
    expected = Counter(ending.kind if meets(index) else None for index in range(fault.requests))
    assert kinds == expected, [row.failure for row in played.rows]
    metrics = played.case.metrics
    assert metrics.requests == fault.requests == metrics.completed + metrics.failed
    assert metrics.failed == sum(tally.count for tally in metrics.failures.values())


def assert_ended(row: Record, fault: Fault, ending: Ending) -> None:
    """One request that met the fault."""
    if row.failure is None:
        found = (row.output_tokens, row.usage, row.finish_reason)
        assert found == (ending.tokens, ending.usage, ending.reason)
        assert int(row.tokens.sum()) == ending.tokens
    else:
        detail = row.failure.detail
        assert detail.strip()
        assert len(detail) <= 400
        assert detail.isprintable(), ascii(detail)
        assert re.search(ending.says, detail, re.I), ascii(detail)
    if fault.resent is not None:
        assert row.resends == fault.resent
    longest_s = max(fault.stall_s, fault.request_s)
    assert 0 <= row.end_ns - row.sent_ns < (longest_s + SLACK_S) * S_NS


def assert_good(row: Record) -> None:
    """One request that met no fault is answered as in a run without any."""
    assert row.failure is None
    found = (row.output_tokens, row.input_tokens, row.usage, row.finish_reason)
    assert found == (OUTPUT, INPUT, True, "length")
    assert row.tokens.tolist() == [1] * OUTPUT


def assert_figures_are_of_the_good_alone(played: Played) -> None:
    good = [row for row in played.rows if row.failure is None]
    metrics = played.case.metrics
    alone = compute_metrics(Records.from_records(good), played.case.facts.ask())
    for name, found in distributions(metrics).items():
        assert found == distributions(alone)[name] or found.n == 0 == distributions(alone)[name].n, name
        if found.n:
            figures = [found.mean_ms, found.median_ms, found.min_ms, found.max_ms]
            figures += found.percentiles_ms.values()
            assert all(math.isfinite(figure) and figure >= 0 for figure in figures), name
    assert metrics.total_output_tokens == sum(row.output_tokens for row in good)
    assert metrics.total_input_tokens >= 0
    for row in good:
        assert (np.diff([row.sent_ns, *row.arrival_ns, row.end_ns]) >= 0).all()
        assert (row.tokens >= 0).all()


def assert_stored_whole(played: Played, tmp_path: Path) -> None:
    path = tmp_path / "arrivals.npz"
    stored = played.case.records
    stored.save(path)
    again = Records.load(path)
    assert path.stat().st_size < MOST_STORED_BYTES
    assert again.failures == stored.failures
    assert again.finish_reasons == stored.finish_reasons
    assert again.columns.keys() == stored.columns.keys()
    for name, column in stored.columns.items():
        assert column.tolist() == again.columns[name].tolist(), name
    assert (again.start == stored.start).all()
    assert (again.arrival_ns == stored.arrival_ns).all()
    assert (again.tokens == stored.tokens).all()


def assert_result_is_strict(played: Played, fault: Fault) -> None:
    text = json.dumps(encode_run(played.result, detailed=True), allow_nan=False)
    found = json.loads(text)
    text.encode("utf-8")
    assert found["completed"] + found["failed"] == found["num_prompts"] == fault.requests
    figures = {key: value for key, value in found.items() if key not in ("loadgen", "itls", "latencies")}
    assert all(number >= 0 for number in numbers(figures))


def assert_verdict(played: Played, fault: Fault, ending: Ending) -> None:
    verdict = played.result.verdict
    names = {found.rule.code for found in verdict.findings}
    expected = fault.doubts | ({MANY_FAILURES} if ending.kind else set())
    unsure = {"many-resent"} if fault.resent is None else set()
    assert names & ABOUT_ANSWERS - unsure == expected - unsure
    if ending.kind:
        assert verdict.level == "INVALID"


# What is made of the bytes is the same over all: one transport is of the unit tests, the others are long.
EVERY_TRANSPORT = ["wire", *(pytest.param(name, marks=pytest.mark.long) for name in ("ring", "httpx"))]


@pytest.mark.parametrize("transport", EVERY_TRANSPORT)
@pytest.mark.parametrize("section", faults_table.SECTIONS)
def test_a_bad_answer_costs_itself_alone(section: str, transport: str, tmp_path: Path) -> None:
    """In virtual time; what the kernel does to connections is `test_over_a_real_network_too`'s."""

    @loop_over("fault", faults_table.SECTIONS[section])
    def check(fault: Fault, tmp_path: Path) -> None:
        assert_costs_itself_alone(fault, transport, VirtualServer(fault.script), tmp_path)

    check(tmp_path=tmp_path)


@pytest.mark.whole
@loop_over("fault", OF_CONNECTIONS)
def test_over_a_real_network_too(fault: Fault, transport: str, tmp_path: Path) -> None:
    began_s = time.monotonic()
    assert_costs_itself_alone(fault, transport, FaultyServer(fault.script), tmp_path)
    assert time.monotonic() - began_s < PATIENCE_S


def assert_costs_itself_alone(
    fault: Fault, transport: str, server: FaultyServer | VirtualServer, tmp_path: Path
) -> None:
    """What becomes of the run, of each request in it, and of what is kept of it."""
    ending = fault.over(transport)
    played = play(fault, transport, server)
    assert_counts_add_up(played, fault, ending)
    for row in played.rows:
        if meets(row.index):
            assert_ended(row, fault, ending)
        else:
            assert_good(row)
    assert_figures_are_of_the_good_alone(played)
    assert_stored_whole(played, tmp_path)
    assert_result_is_strict(played, fault)
    assert_verdict(played, fault, ending)


def test_every_fault_has_its_own_name() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) > 150


def test_connections_reset_as_they_are_made_are_never_resent(transport: str) -> None:
    with FaultyServer(lambda _: whole_answer(), accepts=lambda number: number % 2 == 0) as server:
        driven = drive(job_of(server.target(), 4, 1), transport)
    rows = judged(driven, 4).rows
    assert all(row.resends == 0 for row in rows)
    assert {row.failure.kind for row in rows if row.failure} <= {K.CONNECT, K.TRUNCATED}
    assert any(row.failure is None for row in rows)


@pytest.mark.parametrize(
    ("transport", "lingers", "found"),
    [
        *[(name, lingers, {K.HTTP_STATUS}) for name in ("wire", "ring") for lingers in (True, False)],
        ("httpx", True, {K.HTTP_STATUS}),
        # asyncio gives up what lies in the socket once it cannot write.
        ("httpx", False, {K.HTTP_STATUS, K.TRUNCATED}),
    ],
)
def test_a_413_before_the_request_was_read_is_its_answer(
    transport: str, lingers: bool, found: set[FailureKind], tmp_path: Path
) -> None:
    """More is sent than the kernel's buffers take, so the client is still writing when it is refused."""
    says = refused("413 Too Large", b'{"error":{"message":"too large"}}', "connection: close").pieces
    early = Answer([*says, 0.1], End.HALF) if lingers else Answer([*says, 0.3], End.CLOSE)
    fault = Fault("413 early", early, fails(K.HTTP_STATUS, "^413: too large"), requests=2)
    with FaultyServer(lambda _: early, reads_bodies=False) as server:
        job = job_of(server.target(), fault.requests, 1, body=lambda _: bytes(16 << 20))
        played = judged(drive(job, transport), fault.requests)
    assert {row.failure and row.failure.kind for row in played.rows} <= found
    for row in played.rows:
        if row.failure and row.failure.kind is K.HTTP_STATUS:
            assert_ended(row, fault, fault.ending)
    assert_stored_whole(played, tmp_path)
    assert_result_is_strict(played, fault)


def test_an_answer_to_nothing_asked_is_nobodys(transport: str) -> None:
    """A 408 on an idle connection: the next request, 100 ms later, goes out on another one."""
    late = raw(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", End.CLOSE)
    answer = Answer([*whole_answer().pieces, 0.02, *late.pieces], End.CLOSE)
    server = VirtualServer(lambda _: answer)
    offsets_ns = np.arange(4, dtype=np.int64) * S_NS // 10
    driven = drive(job_of(server.target(), 4, 1, offsets_ns=offsets_ns), transport, server)
    rows = judged(driven, 4).rows
    for row in rows:
        assert_good(row)
    assert [row.resends for row in rows] == [0] * 4
