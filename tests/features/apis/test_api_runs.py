"""Runs over the APIs next to chat, from the command line to the embedded engine, in virtual time."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over
from fakes.hosted_api import KEY, HostedApi
from fakes.scripted_server import Answer, Asked, whole
from fakes.virtual_serving import VirtualServing, virtual_engines
from loadgen import cli
from loadgen.records.record import Records
from loadgen.report.run_directory import ARRIVALS, RESULT
from loadgen.transport.failure import Failure, FailureKind

WORDS = """bench --quiet --preset h20/qwen3-8b-fp8 --random-input-len 64 --random-output-len 16 --seed 1
    --max-concurrency 2 --num-warmups 0"""


def run(api: str, place: Path, *more: str) -> tuple[dict[str, Any], Records]:
    """The result and the records of a run."""
    with virtual_engines():
        code = cli.main([*WORDS.split(), "--backend", api, "--run-dir", str(place), *more])
    assert code == 0
    (place,) = place.iterdir()
    return json.loads((place / RESULT).read_text("utf-8")), Records.load(place / ARRIVALS)


FORMS = [
    ("--num-prompts", "6"),
    ("--num-prompts", "6", "--disable-stream"),
    ("--turns", "2", "--num-sessions", "3", "--assistant", "live", "--random-prefix-len", "32"),
]
BY_HTTPX = ("anthropic-messages", ("--num-prompts", "6", "--transport", "httpx"))


@loop_over(("backend", "more"), [*product(("anthropic-messages", "openai-responses"), FORMS), BY_HTTPX])
def test_a_run_is_that_of_chat(
    backend: str, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are chat's, and times too, where there is a stream."""
    monkeypatch.chdir(tmp_path)
    (chat, own), (result, records) = (run(api, tmp_path / api, *more) for api in ("openai-chat", backend))
    for name in ("completed", "failed", "total_input_tokens", "total_output_tokens"):
        assert result[name] == chat[name], name
    assert records.output_tokens.tolist() == own.output_tokens.tolist()
    assert records.input_tokens.tolist() == own.input_tokens.tolist()
    assert records.finish_reasons == own.finish_reasons
    if "--disable-stream" not in more:
        assert result["mean_ttft_ms"] == pytest.approx(chat["mean_ttft_ms"], rel=0.02)
        assert result["mean_itl_ms"] == pytest.approx(chat["mean_itl_ms"], rel=0.02)


BODY = (
    "input_len = 8\noutput_len = 3\nnum_prompts = 2\nmax_concurrency = 1\nnum_warmups = 0\nstream = false\n"
)


@loop_over(
    "backends",
    [("openai-chat", "anthropic-messages"), ("anthropic-messages", "openai-chat", "anthropic-messages")],
)
def test_each_profile_of_a_command_has_the_headers_of_its_api(
    backends: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    heads: dict[str, set[bool]] = {"/v1/messages": set(), "/v1/chat/completions": set()}
    profiles = list[str]()
    for number, backend in enumerate(backends):
        path = tmp_path / f"p{number}.toml"
        path.write_text(f'backend = "{backend}"\n{BODY}prompt_format = "words"\n')
        profiles.append(str(path))
    hosted = HostedApi()

    def answer(asked: Asked) -> Answer:
        path, head = asked.head.split(" ")[1], asked.head.lower()
        if path not in heads:
            return hosted(asked)
        heads[path] |= {"anthropic-version: " in head, f"x-api-key: {KEY}" in head}
        prompt = 5 + len(msgspec.json.decode(asked.body)["messages"][0]["content"].split())
        usage = {"input_tokens": prompt, "prompt_tokens": prompt, "output_tokens": 3, "completion_tokens": 3}
        body = {"type": "message", "content": [{"type": "text", "text": "a"}], "stop_reason": "max_tokens"}
        if path != "/v1/messages":
            body = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "length"}]}
        return Answer([whole(msgspec.json.encode({**body, "usage": usage}))])

    words = ["bench", "--quiet", "--run-dir", "runs", "--profile", ",".join(profiles)]
    with VirtualServing(answer) as server:
        assert cli.main([*words, "--base-url", server.base_url]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == len(backends)
    assert heads == {"/v1/messages": {True}, "/v1/chat/completions": {False}}


NOT_STREAMED = "one JSON body where a stream was requested"
RECORDED: dict[str, dict[str, Any]] = json.loads(recorded.STORED.read_text("utf-8"))


@loop_over(("name", "stored"), RECORDED.items())
def test_a_recorded_answer_is_read_as_it_is_stored(name: str, stored: dict[str, Any]) -> None:
    """Its tokens, text, counts, times of the server's own and end."""
    assert recorded.describe(name) == stored
    if "nostream" in name:
        streamed = recorded.decode(name.replace("nostream", "asked for a stream"), recorded.reads(name))
        assert streamed.failure == Failure(FailureKind.NOT_STREAMED, NOT_STREAMED)
