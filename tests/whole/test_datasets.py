"""Data sets and traces from the command line to a recording server: what the file holds is what arrives."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from builders.only_run import stored
from fakes.counting_api import CountingApi
from fakes.virtual_run import serving
from loadgen import cli
from loadgen.records.record import Records
from loadgen.report.run_directory import ARRIVALS

pytestmark = pytest.mark.usefixtures("elsewhere")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
DATA = ROOT / "tests" / "data" / "datasets"
CHAT = ["--backend", "openai-chat"]
LAID_OVER = {"stream", "stream_options", "ignore_eos"}  # by the plan, on every body
Values = dict[str, bytes]


def bench(api: CountingApi, *words: str | Path) -> int:
    """A run against a recording server, one request at a time."""
    with serving(api) as server:
        line = ["bench", "--quiet", "--base-url", server.base_url, "--max-concurrency", "1"]
        return cli.main([*line, *map(str, words)])


def values(body: bytes) -> Values:
    """The bytes of each field's value, as they stand."""
    decoded = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return {name: bytes(value) for name, value in decoded.items()}


def rows(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def arrived(api: CountingApi, count: int) -> list[Values]:
    """The bodies of the run: what came before them was sent to learn what the server takes."""
    assert len(api.served) >= count
    return [values(body) for body in api.served[-count:]]


@pytest.mark.parametrize(("file", "words", "laid"), [
    pytest.param(EXAMPLES / "bodies_with_tools.jsonl", [], {}, id="tools and a JSON schema"),
    pytest.param(EXAMPLES / "images.jsonl", [], {}, id="an image as a data URL"),
    pytest.param(DATA / "odd_bodies.jsonl", [], {}, id="numbers and escapes as they are written"),
    pytest.param(DATA / "odd_bodies.jsonl", ["--temperature", "0.5", "--extra-body", '{"top_k": 7}'],
                 {"temperature": b"0.5", "top_k": b"7"}, id="what flags lay over"),
])  # fmt: skip
def test_whole_bodies_arrive_as_they_stand_in_the_file(file: Path, words: list[str], laid: Values) -> None:
    api = CountingApi()
    assert bench(api, *CHAT, "--dataset-path", file, *words) == 0
    wanted = [values(row) for row in rows(file)]
    sent = arrived(api, len(wanted))
    for want, got in zip(wanted, sent, strict=True):
        assert {name: value for name, value in got.items() if name in laid} == laid
        assert got["stream"] == b"true"
        assert got["model"] == want.get("model", b'"m"')
        over = {*LAID_OVER, *laid, "model"}
        assert {n: v for n, v in got.items() if n not in over} == {
            n: v for n, v in want.items() if n not in over
        }


def test_each_recorded_answer_is_a_request_with_its_history() -> None:
    api, file = CountingApi(), DATA / "mlperf_edge_agentic_excerpt.jsonl"
    assert bench(api, *CHAT, "--dataset-path", file) == 0
    turns = [values(row) for row in rows(file)]
    sent = arrived(api, 7)
    assert {body["tools"] for body in sent} == {turns[0]["tools"]}
    for number, body in enumerate(sent):
        system, user, *history = (
            values(m) for m in msgspec.json.decode(body["messages"], type=list[msgspec.Raw])
        )
        assert system == {"role": b'"system"', "content": turns[0]["system"]}
        assert user == {"role": b'"user"', "content": turns[0]["content"]}
        assert len(history) == 2 * number
        for answer, recorded in zip(history[::2], turns[1::2], strict=False):
            assert answer["role"] == b'"assistant"'
            assert answer["tool_calls"] == recorded["tool_calls"]
        for message, recorded in zip(history[1::2], turns[2::2], strict=False):
            (result,) = msgspec.json.decode(recorded["tool_results"], type=list[dict[str, msgspec.Raw]])
            assert message["role"] == b'"tool"'
            assert message["content"] == bytes(result["content"])
            assert message["tool_call_id"] == bytes(result["tool_call_id"])


@pytest.mark.parametrize("named", [[], ["--dataset-name", "custom"]], ids=["recognised", "custom"])
def test_prompts_are_sent_with_the_lengths_of_their_rows_or_vllms(named: list[str]) -> None:
    api, file = CountingApi(), EXAMPLES / "prompts.jsonl"
    line = ["--skip-chat-template", "--disable-shuffle", "--num-prompts", "6"]
    assert bench(api, *CHAT, *named, *line, "--dataset-path", file) == 0
    wanted = [json.loads(row) for row in rows(file)]
    sent = [json.loads(body) for body in api.served[-len(wanted) :]]
    assert [body["messages"] for body in sent] == [[{"role": "user", "content": r["prompt"]}] for r in wanted]
    lengths = [body.get("max_tokens", body.get("max_completion_tokens")) for body in sent]
    assert lengths == [256 if named else row["output_tokens"] for row in wanted]


def test_a_window_of_a_trace_is_sent_at_its_times_with_its_prefixes() -> None:
    """The rows from 3 s to 9 s, ten times as fast, all clipped to 600 tokens: a shared block, and 88 more."""
    api, file = CountingApi(), EXAMPLES / "mooncake.jsonl"
    window = ["--trace-window", "3:9", "--speed-up", "10"]
    short = ["--trace-max-input-len", "600", "--trace-max-output-len", "3", "--trace-too-long", "clip"]
    with serving(api) as server:
        line = ["bench", "--quiet", "--base-url", server.base_url, "--trace", str(file), "--trace-format"]
        assert cli.main([*line, "mooncake", *window, *short]) == 0
    wanted = [row for row in map(json.loads, rows(file)) if 3000 <= row["timestamp"] < 9000]
    sent = [json.loads(body) for body in api.served[-len(wanted) :]]
    by_time = sorted((row["timestamp"], min(row["input_length"], 600)) for row in wanted)
    assert sorted(len(body["prompt"]) for body in sent) == sorted(length for _, length in by_time)
    firsts = {tuple(body["prompt"][:512]) for body in sent if len(body["prompt"]) > 512}
    assert len(firsts) == len({row["hash_ids"][0] for row in wanted if row["input_length"] > 512})
    (directory,) = Path("runs").iterdir()
    due_ns = Records.load(directory / ARRIVALS).intended_ns
    ms = np.array([time for time, _ in by_time]) - by_time[0][0]
    assert ((due_ns - due_ns.min()) // 1_000_000).tolist() == (ms // 10).tolist()
    data = stored()[0]["data"]
    assert (data["kind"], data["sent"], data["schedule"]["requests"]) == ("trace", len(wanted), len(wanted))


def test_two_clients_are_given_the_same_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """The exported plan, sent again, is the same requests: a plan is a file that other clients read too."""
    first, again = CountingApi(), CountingApi()
    file = ["--dataset-path", str(EXAMPLES / "prompts.jsonl")]
    assert bench(first, *file, "--export-requests", "plan.jsonl") == 0
    lines = [json.loads(row) for row in rows(Path("plan.jsonl"))]
    assert [set(line) >= {"prompt", "output_tokens"} for line in lines] == [True] * len(lines)
    assert bench(again, "--dataset-path", "plan.jsonl") == 0
    count = len(lines)
    assert [values(body) for body in first.served[-count:]] == [
        values(body) for body in again.served[-count:]
    ]
