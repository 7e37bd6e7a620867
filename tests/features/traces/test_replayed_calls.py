"""Replayed calls: a log's sampling and cancellations, from its lines to the bytes and times that are sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadgen
from builders import made_logs
from builders.loops import loop_over
from builders.made_logs import KnownCall
from builders.required import require
from builders.traces import jsonl, planned
from fakes.scripted_server import Answer, Asked, api, stream, target_of, whole
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.features.traces.trace_rows import NO_SAMPLING, RecordedFields
from loadgen.report import run_directory
from loadgen.report.report import render_report
from loadgen.report.run_directory import Result
from loadgen.run.firing import TransportOptions, make_job
from loadgen.run.stop_rules import StopRules
from loadgen.transport.failure import FailureKind

SECOND = 1_000_000_000
CUT = FailureKind.USER_CANCELLED
SAMPLING = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "top_p": 0.95}


def make_call(session: int, begin_s: float, took_s: float, ids: Sequence[int], **more: Any) -> KnownCall:
    return KnownCall(made_logs.BEGIN_S + begin_s, took_s, [*ids], [], 5, session, **more)


FIRST, OTHER = range(100, 140), range(300, 340)
# Two calls of one conversation, of which the first is given up, and one of another.
CALLS = (
    make_call(0, 0.0, 1.5, FIRST, cancelled=True, temperature=0.0),
    make_call(1, 0.2, 4.0, OTHER, temperature=0.7),
    make_call(0, 2.5, 0.25, [*FIRST, *range(140, 160)], cancelled=True, temperature=1.0),
)


def learn(directory: Path, calls: Sequence[KnownCall] = CALLS) -> Path:
    log = made_logs.write_vllm(directory / "a.log", calls, "0.32")
    assert cli.main(["data", "learn", str(log), "-o", str(directory / "w.jsonl")]) == 0
    return directory / "w.jsonl"


def answer(asked: Asked) -> Answer:
    """As many tokens as are asked for, one each 0.2 s."""
    return stream(json.loads(asked.body)["max_tokens"], 0.2)


def bench(
    workload: Path, directory: Path, script: Callable[[Asked], Answer] = answer, **more: Any
) -> tuple[Result, list[dict[str, Any]]]:
    """A run of a workload, and the bodies of its requests in their order."""
    keys: dict[str, Any] = {
        "num_warmups": 0,
        "trace": str(workload),
        "run_dir": str(directory / "runs"),
    } | more
    with VirtualServing(api(script)) as server:
        loadgen.bench(server.base_url, **keys)
        asked = [each for each in server.asked if "completions" in each.head]
    (path,) = (directory / "runs").iterdir()
    run = run_directory.load(path)
    return run, [json.loads(each.body) for each in asked[-len(run.records) :]]


@loop_over("replay", ["recorded", "closed"])
@loop_over("transport", ["wire", "httpx"])
def test_a_log_is_sent_with_its_sampling_and_cancelled_as_it_was(
    replay: str, transport: str, tmp_path: Path
) -> None:
    run, bodies = bench(learn(tmp_path), tmp_path, trace_replay=replay, transport=transport, top_p=0.5)
    records = run.records
    order = np.argsort(records.sent_ns)
    by_temperature = np.argsort([body["temperature"] for body in bodies])  # sessions are in a drawn order
    order, bodies = order[by_temperature], [bodies[i] for i in by_temperature]
    sent_after_s = (records.sent_ns[order] - records.sent_ns.min()) / SECOND
    assert [body["temperature"] for body in bodies] == [0.0, 0.7, 1.0]
    if replay == "recorded":
        assert sent_after_s.tolist() == pytest.approx([0, 0.2, 2.5], abs=0.01)
    else:
        assert sent_after_s[2] == pytest.approx(2.5, abs=0.01)  # a second after the first was given up
    for body in bodies:
        assert {name: body[name] for name in SAMPLING} == SAMPLING | {"top_p": 0.5}
        assert (body["top_k"], body["stream"]) == (-1, True)
        assert not {"min_tokens", "logprobs"} & set(body)
    # What was given up after 5 tokens would have gone on: 5 more are asked for, as long as the other answer.
    assert [body["max_tokens"] for body in bodies] == [10, 5, 5]
    took_s = (records.end_ns - records.sent_ns)[order] / SECOND
    assert took_s.tolist() == pytest.approx([1.5, 1.4, 0.25], abs=0.01)
    kinds = [failure and failure.kind for failure in records.failures]
    assert [kinds[row] for row in order.tolist()] == [CUT, None, CUT]
    assert sorted(after_ns for _, after_ns, _ in run.facts.cancels) == [SECOND // 4, SECOND * 3 // 2]
    report = " ".join(render_report(run).split())
    assert "cancelled as the trace says: 2 of 2 requests, 0." in report
    assert "outputs are sampled as each was recorded: temperature, top_k, min_p, frequency_penalty" in report


def write(directory: Path, *calls: dict[str, Any]) -> Path:
    """A workload of one session with these calls, a second after one another."""
    head = dict.fromkeys(("source", "prompts", "answers"), "")
    rows = [{"t": float(i), "in": 40, "out": 4, **call} for i, call in enumerate(calls)]
    counts = {"workload": 1, "block_size": 16, "sessions": 1, "calls": 2}
    return jsonl(directory, [{**counts, **head}, {"t": 0.0, "calls": rows, "parents": [0]}])


def test_a_call_without_an_end_is_cancelled_by_its_tokens(tmp_path: Path) -> None:
    path = write(tmp_path, {"cancelled": True}, {"cancelled": True, "took": 0.5}, {"took": 1.0, "out": 9})
    run, _ = bench(path, tmp_path)
    assert run.facts.cancels == ((0, 0, 4), (1, SECOND // 2, 0))
    took_s = (run.records.end_ns - run.records.sent_ns) / SECOND
    assert took_s.tolist() == pytest.approx([0.8, 0.5, 2.2], abs=0.01)
    assert run.metrics.cancelled == 2


def test_a_call_that_was_given_up_at_once_is_cancelled_at_once(tmp_path: Path) -> None:
    run, _ = bench(write(tmp_path, {"cancelled": True, "took": 0.0}, {}), tmp_path)
    assert run.facts.cancels == ((0, 1, 0),)
    assert int(run.records.end_ns[0] - run.records.sent_ns[0]) < SECOND // 1000


def test_a_session_goes_on_after_a_call_that_was_given_up(tmp_path: Path) -> None:
    calls = {"cancelled": True, "took": 0.5}, {"agent": 1, "took": 1.0}, {"took": 0.25}
    run, bodies = bench(write(tmp_path, *calls), tmp_path, trace_replay="closed", transport="wire")
    assert [failure and failure.kind for failure in run.records.failures] == [CUT, None, None]
    sessions = require(run.sessions)
    assert (sessions.finished.tolist(), sessions.dropped, len(bodies)) == ([True], 0, 3)


def test_a_field_that_the_server_refuses_is_left_out(tmp_path: Path) -> None:
    def script(asked: Asked) -> Answer:
        refused = b'{"error":{"message":"Unrecognized request argument supplied: min_p"}}'
        return Answer([whole(refused, "400 Bad Request")]) if b'"min_p"' in asked.body else answer(asked)

    path = write(tmp_path, {"sampling": {"temperature": 0.5, "min_p": 0.1}})
    run, (body,) = bench(path, tmp_path, script)
    assert [field.name for field in run.facts.adapted] == ["min_p"]
    assert (body["temperature"], "min_p" in body) == (0.5, False)


def test_cancels_and_one_connection_for_all_do_not_go_together(tmp_path: Path) -> None:
    made = planned(write(tmp_path, {"cancelled": True, "took": 0.5}))
    options = TransportOptions(target_of("127.0.0.1", 9), "httpx", http2=True)
    with pytest.raises(UsageError, match="--http2 shares one"):
        make_job(made, options, StopRules())


@loop_over(
    ("cancelled", "outputs", "most", "asked"),
    [
        ([0, 0], [4, 8], 100, [4, 8]),
        ([1, 0, 0], [4, 8, 10], 100, [10, 8, 10]),  # no longer than the longest request
        ([1, 0, 0], [4, 8, 40], 100, [28, 8, 40]),  # half of 8 and 40 more
        ([1, 0, 0], [4, 8, 40], 6, [6, 8, 40]),
        ([1, 1], [4, 8], 100, [8, 8]),
    ],
)
def test_a_cancelled_answer_is_asked_for_longer(
    cancelled: list[int], outputs: list[int], most: int, asked: list[int]
) -> None:
    rows, none = np.arange(len(outputs)), np.full(len(outputs), NO_SAMPLING)
    fields = RecordedFields((), none, np.array(cancelled), np.zeros(len(outputs), np.int64))
    lens = np.full(len(outputs), 40), np.array(outputs)
    assert fields.lengthen(rows, lens, most).tolist() == asked
