"""Word counts: a chat API is measured without a tokenizer, at the lengths that were asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.only_run import stored
from fakes.hosted_api import KEY, MODEL, HostedApi, openai_error
from fakes.scripted_server import DONE, HEAD, LAST, Answer, Asked, chunk, whole
from fakes.virtual_serving import VirtualServing
from loadgen import cli

pytestmark = [
    # Python 3.12 warns of any thread at a fork; the child takes none of their locks.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
]
CHAT = [*("--num-prompts", "6", "--max-concurrency", "2", "--random-input-len", "200"),
        *("--random-output-len", "3", "--backend", "openai-chat", "--model", MODEL)]  # fmt: skip
SAID = {"type": "message", "content": [{"type": "text", "text": "a"}]}
ENDED = {"finish_reason": {"type": "length"}}
NO_LIMIT = (400, openai_error("Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                              "'max_completion_tokens' instead.", "max_tokens"))  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def counted(text: str) -> int:
    return 17 + len(text.split())


def bench(api: Any, *more: str) -> int:
    with VirtualServing(api) as server:
        return cli.main(["bench", "--quiet", "--base-url", server.base_url, *CHAT, *more])


@pytest.mark.parametrize(
    "refused", [pytest.param({}, id="takes_all"), pytest.param({"max_tokens": NO_LIMIT}, id="renamed_limit")]
)
def test_a_hosted_api_without_a_list_of_models_gets_the_asked_lengths(refused: dict[str, Any]) -> None:
    api = HostedApi(refused, models=False, counts=counted)
    assert bench(api) == 0
    facts, report = stored()
    run = [counted(body["messages"][0]["content"]) for body in api.served[-6:]]
    assert run == [200] * 6
    assert facts["prompt_format"] == "words"
    assert "the server counts 1 tokens a word and 17 more in each prompt (asked 11 times" in report
    assert "by usage)" in report
    assert "200.0 by the server's count" in report
    limits = [body.get("max_tokens", body.get("max_completion_tokens")) for body in api.served[:-6]]
    assert limits.count(1) == 10
    assert KEY not in report


def test_tokenize_is_asked_where_there_is_one() -> None:
    api, texts = HostedApi(models=False, counts=counted, key=None), list[str]()

    def tokenizing(asked: Asked) -> Answer:
        if not asked.head.startswith("POST /tokenize "):
            return api(asked)
        body = msgspec.json.decode(asked.body)
        assert (body["model"], body["add_generation_prompt"]) == (MODEL, True)
        texts.append(body["messages"][0]["content"])
        return Answer([whole(msgspec.json.encode({"count": counted(texts[-1]), "tokens": []}))])

    assert bench(tokenizing) == 0
    assert len(texts) == 10
    assert "by /tokenize)" in stored()[1]
    assert [counted(body["messages"][0]["content"]) for body in api.served[-6:]] == [200] * 6


@pytest.mark.parametrize(
    ("api", "why"),
    [
        (HostedApi(models=False, usage=False), "reports no usage.prompt_tokens, so prompts cannot be given"),
        (HostedApi(models=False), "counts 9 tokens for any longer prompt (65 words as well as 513)"),
        (HostedApi(models=False, counts=lambda _: 0), "reports usage.prompt_tokens of 0, so prompts cannot"),
        (HostedApi(models=False, counts=lambda text: min(counted(text), 120)), "counts 120 tokens for any"),
        (HostedApi(models=False, key="sk-other-key"), "does not accept the key from OPENAI_API_KEY (401)"),
        (HostedApi(models=False, counts=counted, limit=3), "answers 429: Rate limit reached for requests"),
    ],
)
def test_a_server_that_does_not_count_is_refused_with_the_way(
    api: HostedApi, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(api) != 0
    shown = " ".join(capsys.readouterr().err.split())
    assert why in shown
    assert KEY not in shown
    assert not Path("runs").exists() or not any(Path("runs").iterdir())


def test_an_api_that_refuses_one_token_is_asked_for_a_few() -> None:
    api = HostedApi(models=False, counts=counted)

    def reasoning(asked: Asked) -> Answer:
        if b'"max_tokens":1,' not in asked.body:
            return api(asked)
        error = openai_error("Could not finish the message because max_tokens was reached.")
        return Answer([whole(msgspec.json.encode(error), "400 Refused")])

    assert bench(reasoning, "--min-tokens", "3") == 0
    assert [counted(body["messages"][0]["content"]) for body in api.served[-6:]] == [200] * 6
    asked = [body for body in api.served if body["max_tokens"] == 16]
    assert len(asked) == 10
    assert not any("min_tokens" in body for body in asked)


def test_the_native_api_of_sglang_is_asked_in_its_own_words() -> None:
    def generating(asked: Asked) -> Answer:
        if not asked.head.startswith("POST /generate "):
            return Answer([whole(b"{}", "404 Not Found")])
        body = msgspec.json.decode(asked.body)
        limits.append(body["sampling_params"])
        meta = {"prompt_tokens": counted(body["text"]), "completion_tokens": 1, **ENDED}
        event = msgspec.json.encode({"text": "a", "index": 0, "meta_info": meta})
        return Answer([HEAD, chunk(b"data: %b\n\n" % event), chunk(DONE), LAST])

    limits: list[dict[str, Any]] = []
    assert bench(generating, "--backend", "sglang", "--prompt-format", "words", "--min-tokens", "2") == 0
    assert "200.0 by the server's count" in stored()[1]
    assert [limit["max_new_tokens"] for limit in limits].count(1) == 10
    assert not any("min_new_tokens" in limit for limit in limits if limit["max_new_tokens"] == 1)


@pytest.mark.parametrize(
    ("backend", "answer", "field"),
    [
        ("openai-responses", {"id": "r", "output": [SAID]}, "usage.input_tokens"),
        ("anthropic-messages", SAID, "usage.input_tokens"),
        ("sglang", {"text": "a", "meta_info": ENDED}, "meta_info.prompt_tokens"),
    ],
)
def test_a_count_that_is_missing_has_the_name_of_its_api(
    backend: str, answer: dict[str, Any], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hosted = HostedApi(models=False)

    def uncounted(asked: Asked) -> Answer:
        is_path = asked.head.startswith("POST /v1/") or asked.head.startswith("POST /generate")
        return Answer([whole(msgspec.json.encode(answer))]) if is_path else hosted(asked)

    more = ("--backend", backend, "--disable-stream", "--prompt-format", "words")
    assert bench(uncounted, *more) != 0
    assert f"reports no {field}, so prompts cannot be given" in " ".join(capsys.readouterr().err.split())
