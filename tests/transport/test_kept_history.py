"""Sessions whose history the server keeps, on every transport: each turn names the response before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.required import require
from fakes.scripted_server import HEAD, LAST, Answer, Asked, chunk, drive, job_of
from fakes.virtual_network import VirtualServer
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.features.sessions.turn_sending import make_turns
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.records.decode import Decoder
from loadgen.transport.failure import Failure, FailureKind

SESSIONS, TURNS = 3, 4
KEYS = {"turns": TURNS, "num_sessions": SESSIONS, "input_len": 8, "output_len": 3, "prefix_len": 4}


def made(**keys: Any) -> Plan:
    given = {**KEYS, "max_concurrency": 2, "backend": "openai-responses", "assistant": "server", **keys}
    return plan.make(profile.build(given), ModelTarget(ENGINES[0], "m"), Seed(1, chosen=True))


def event(name: str, **fields: Any) -> bytes:
    data = msgspec.json.encode({"type": f"response.{name}", **fields})
    return chunk(b"event: response.%b\ndata: %b\n\n" % (name.encode(), data))


class KeptHistories:
    """Histories by the ids of answers, as a server keeps them, and what each request had before it.

    The answer of the number `unnamed`, from 1, has no id.
    """

    def __init__(self, unnamed: int = 0) -> None:
        self.unnamed = unnamed
        self.kept: dict[str, list[str]] = {}
        self.before: list[list[str]] = []

    def answer(self, asked: Asked) -> Answer:
        body = msgspec.json.decode(asked.body)
        assert (body["store"], body["stream"]) == (True, True)
        history = self.kept[body["previous_response_id"]] if "previous_response_id" in body else []
        said = body["input"] if isinstance(body["input"], str) else body["input"][0]["content"]
        self.before.append(history)
        name = f"resp_{len(self.before)}"
        self.kept[name] = [*history, said, name]
        tokens = sum(len(text.split()) for text in (body["instructions"], *history, said))
        usage: dict[str, Any] = {"input_tokens": tokens, "output_tokens": 3, "total_tokens": tokens + 3}
        usage["input_tokens_details"] = {"cached_tokens": tokens // 2}
        status = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        named = {} if len(self.before) == self.unnamed else {"id": name}
        last = event("incomplete", response={**named, **status, "output": [], "usage": usage})
        return Answer([HEAD, event("created"), *[event("output_text.delta", delta=" a")] * 3, last, LAST])


def test_each_turn_has_the_history_that_the_server_kept(transport: str) -> None:
    of, histories = made(), KeptHistories()
    server = VirtualServer(histories.answer)
    order, sessions = make_turns(of, require(of.turns), range(SESSIONS), ())
    job = job_of(server.target(), 0, 2, body=of.body, order=order, sessions=sessions)
    driven = drive(job, transport, server)
    decoder = Decoder(of.dialect, streamed=True)
    records = {capture.index: decoder.decode(capture) for capture in driven.captures}
    assert [record.failure for record in records.values()] == [None] * SESSIONS * TURNS
    assert sorted(map(len, histories.before)) == sorted([0, 2, 4, 6] * SESSIONS)
    for session in range(SESSIONS):
        inputs = [records[session * TURNS + turn].input_tokens for turn in range(TURNS)]
        assert inputs == sorted(set(inputs))
        assert records[session * TURNS].cached_tokens == inputs[0] // 2
        newest = max(
            (h for h in histories.kept.values() if h[0] == of.payload(session * TURNS)["input"]), key=len
        )
        assert newest[2::2] == [
            of.payload(session * TURNS + turn)["input"][-1]["content"] for turn in (1, 2, 3)
        ]
    bodies = [msgspec.json.decode(asked.body) for asked in server.asked]
    assert all(len(body["input"]) == 1 for body in bodies if "previous_response_id" in body)
    assert len({body["instructions"] for body in bodies}) == 1


def test_a_turn_whose_answer_has_no_id_fails_and_ends_its_session(transport: str) -> None:
    of = made(num_sessions=2, max_concurrency=1)
    server = VirtualServer(KeptHistories(unnamed=2).answer)
    order, sessions = make_turns(of, require(of.turns), range(2), ())
    job = job_of(server.target(), 0, 1, body=of.body, order=order, sessions=sessions)
    decoder = Decoder(of.dialect, streamed=True)
    records = {each.index: decoder.decode(each) for each in drive(job, transport, server).captures}
    lacking = Failure(FailureKind.UNNAMED, "the response has no id, by which the next turn would name it")
    assert {index: record.failure for index, record in records.items()} == {
        0: None, 1: lacking, **dict.fromkeys(range(TURNS, 2 * TURNS)),
    }  # fmt: skip


def test_results_of_tools_need_the_calls_of_a_history(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "assistant", "content": "sunny"},
    ]
    path = tmp_path / "talks.jsonl"
    lines = [{"conversation_id": "c", "turn": at, **row} for at, row in enumerate(rows, 1)]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    given = {
        "dataset_path": str(path),
        "backend": "openai-responses",
        "assistant": "server",
        "max_concurrency": 1,
    }
    of = plan.make(profile.build(given), ModelTarget(ENGINES[0], "m"), Seed(1, chosen=True))
    with pytest.raises(UsageError, match="--assistant server: the conversations have results of tools"):
        make_turns(of, require(of.turns), range(1), ())
