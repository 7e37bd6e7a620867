"""Sessions from the command line to a recording server: what arrives, and what ends a conversation."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.counting_api import CountingApi
from fakes.hosted_api import openai_error
from fakes.virtual_run import serving
from loadgen import cli
from loadgen.base.errors import ExitCode
from loadgen.facts.run_facts import Facts
from loadgen.figures.session_rows import find_sessions
from loadgen.records.record import Records
from loadgen.report.run_directory import ARRIVALS, RESULT

pytestmark = pytest.mark.usefixtures("elsewhere")
ROOT = Path(__file__).parents[2]
EXCERPT = ROOT / "tests" / "data" / "datasets" / "mlperf_edge_agentic_excerpt.jsonl"
TURNS, SESSIONS = 4, 3
ROLES = "user", "assistant"


def conversations(sessions: int = SESSIONS, turns: int = TURNS, **first: Any) -> str:
    """A file of conversations without delays; `first` are keys of each one's first row."""
    rows = []
    for name in range(sessions):
        for turn in range(2 * turns):
            text = f"{ROLES[turn % 2]} {name} {turn}"
            row = {"conversation_id": f"c{name}", "turn": turn + 1, "role": ROLES[turn % 2], "content": text}
            rows.append({**row, **(first if not turn else {})})
    Path("talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "talks.jsonl"


def bench(api: CountingApi, file: str | Path, *words: str) -> int:
    with serving(api) as server:
        line = ["bench", "--quiet", "--base-url", server.base_url, "--backend", "openai-chat"]
        return cli.main([*line, "--dataset-path", str(file), "--turn-delays", "none", *words])


def runs() -> list[tuple[dict[str, Any], Records]]:
    """The facts and records of each run, in their order."""
    directories = sorted(Path("runs").iterdir(), key=lambda each: each.stat().st_mtime)
    return [
        (json.loads((each / RESULT).read_text("utf-8"))["loadgen"], Records.load(each / ARRIVALS))
        for each in directories
    ]


def talks(api: CountingApi) -> list[list[str]]:
    """The texts of each accepted body's messages, of those that are a conversation's."""
    bodies = [json.loads(body)["messages"] for body in api.served]
    texts = [[message.get("content", "") for message in messages] for messages in bodies]
    return [each for each in texts if each[0].startswith("user")]


def test_a_live_history_has_what_the_server_answered() -> None:
    api = CountingApi()
    assert bench(api, conversations(1), "--max-concurrency", "1", "--assistant", "live") == 0
    assert talks(api)[-1] == ["user 0 0", " a a a", "user 0 2", " a a a", "user 0 4", " a a a", "user 0 6"]


@pytest.mark.parametrize(("first", "asked", "words", "reported"), [
    ({"system": "be kind"}, "system", "System role not supported",
     "refuses a system prompt (400: System role not supported): "),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools",
     '"auto" tool choice requires --enable-auto-tool-choice',
     'refuses tools (400: "auto" tool choice requires --enable-auto-tool-choice'),
])  # fmt: skip
def test_what_a_server_refuses_is_named_with_row_and_conversation(
    first: dict[str, Any], asked: str, words: str, reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(body: Mapping[str, Any]) -> dict[str, Any] | None:
        has = asked in body or any(message["role"] == asked for message in body["messages"])
        return openai_error(words) if has else None

    api = CountingApi(refusal=refusal)
    assert bench(api, conversations(**first), "--max-concurrency", "1") == ExitCode.NOTHING
    said = capsys.readouterr().err
    assert reported in said
    assert "talks.jsonl row 1, conversation 'c0' needs it; " in said
    assert said.count("\n") == 1
    assert talks(api) == []


def by_the_schema(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The messages that MLPerf's schema means for each recorded answer, in order, from the rows alone."""
    expected: list[list[dict[str, Any]]] = []
    history: list[dict[str, Any]] = []
    for row in rows:
        if row["turn"] == 1:
            history = [{"role": "system", "content": row["system"]}] if row.get("system") else []
        if row["role"] == "assistant":
            expected.append(list(history))
        if row["role"] == "tool":
            history += [{"role": "tool", **result} for result in row["tool_results"]]
        else:
            keys = ("role", "content", "reasoning_content", "tool_calls")
            history.append({key: row[key] for key in keys if key in row})
    return expected


@pytest.mark.parametrize("path", [EXCERPT, os.environ.get("MLPERF_EDGE_AGENTIC", "")], ids=["part", "whole"])
def test_a_recording_server_gets_what_the_schema_means(path: Path | str) -> None:
    if not path:
        pytest.skip("MLPERF_EDGE_AGENTIC does not name MLPerf's file")
    rows = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
    expected, tools = by_the_schema(rows), rows[0]["tools"]
    api = CountingApi()
    assert bench(api, path, "--max-concurrency", "1", "--output-len", "3") == 0
    sent = [json.loads(body) for body in api.served][-len(expected) :]
    assert [body["messages"] for body in sent] == expected
    assert all(body["tools"] == tools for body in sent)


AGENTS = ROOT / "tests" / "data" / "traces" / "weka_agents.jsonl"


def test_agents_wait_for_what_they_waited_for_and_send_the_same_bodies() -> None:
    loads = (
        "wire --max-concurrency 2",
        "httpx --max-concurrency 2",
        "wire --request-rate 2 --max-requests 1",
    )
    for load_words in loads:
        with serving(CountingApi(gap_s=0.05)) as server:
            line = f"bench --quiet --base-url {server.base_url} --seed 1 --transport {load_words}"
            limits = "--trace-max-output-len 8 --trace-too-long clip --turn-delays 0.01 --vocab-size 1000"
            assert cli.main([*line.split(), *limits.split(), "--trace", str(AGENTS)]) == 0
    digests = set()
    for stored, records in runs():
        facts = Facts.read_stored(stored)
        waits = facts.make_waits()
        assert waits is not None
        assert (len(records), len(records.failed)) == (21, 0)
        digests.add(facts.bodies_digest)
        for row in range(21):
            ended_ns = [int(records.end_ns[each]) for each in waits.list_before(row)]
            assert max(ended_ns, default=0) <= records.intended_ns[row] <= records.sent_ns[row]
        beside = records.sent_ns[2] < records.end_ns[1]  # two sub-agents of the first session
        assert beside == (facts.profile.max_requests is None)
        assert find_sessions(records, facts.session_turns, waits).finished.all()
    assert len(digests) == 1
