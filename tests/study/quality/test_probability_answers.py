"""What recorded answers of each engine are read as, and what is asked of each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over, read_tables
from builders.required import require
from fakes.scripted_server import Answer, Asked, ScriptedServer, whole
from loadgen.base.errors import MeasureError
from loadgen.server.exchange import ServerAddress
from loadgen.study.quality.probability_server import (
    CHAT,
    PROBABILITY_APIS,
    NoProbabilities,
    ProbabilityServer,
    TokenSequence,
    read_chat,
    read_completions,
    read_generated,
    read_generated_scores,
    read_llamacpp,
    read_prompt_scores,
    read_text_answer,
)

TABLES = read_tables("probabilities")
PROMPTS = [(100, 200, 300), (400, 500, 600, 700)]
SEQUENCES = [TokenSequence((100, 200, 300, 4, 5), 3), TokenSequence((400, 500, 600, 700), 2)]
CHAT_PROMPT = (6000, 2988, 199, 40, 1513, 336, 1356, 6001, 199, 6000, 3390, 766, 774, 199)


def answer(name: str) -> bytes:
    return Path(recorded.RESPONSES / f"{name}.json").read_bytes()


def rounded(values: tuple[float, ...]) -> list[float]:
    return [round(value, 3) for value in values]


@loop_over(
    ("read", "name", "prompts", "ids", "logprobs", "top"),
    [
        (read_completions, "vllm-0.32/probabilities_sampled", PROMPTS, (3559, 4065), [-8.66, -8.474],
         [-7.903, -7.934]),
        (read_generated, "sglang-0.5.23/probabilities_sampled", PROMPTS, (1282, 2365), [-8.654, -8.158],
         [-7.899, -7.934]),
        (read_llamacpp, "llama-server/probabilities_sampled", PROMPTS[:1], (4767, 4815), [-8.66, -8.563],
         [-7.738, -7.969]),
    ],
)  # fmt: skip
def test_sampled_answers_are_read(
    read: Any, name: str, prompts: Any, ids: Any, logprobs: Any, top: Any
) -> None:
    answers = read(answer(name), prompts, 2)
    assert [one.prompt_ids for one in answers] == prompts
    assert [len(one.token_ids) for one in answers] == [5] * len(prompts)
    first = answers[0]
    assert (first.token_ids[:2], rounded(first.logprobs[:2])) == (ids, logprobs)
    assert rounded(require(first.top)[0]) == top
    assert {len(each) for each in require(first.top)} == {2}


def test_given_tokens_are_scored() -> None:
    vllm = read_prompt_scores(answer("vllm-0.32/probabilities_scored"), SEQUENCES)
    assert [(rounded(one.logprobs), one.firsts) for one in vllm] == [
        ([-8.83, -8.651], (1257, 5328)),
        ([-8.519, -8.66], (3788, 462)),
    ]
    sequences = [TokenSequence((100, 200, 300, 4, 5), 4), TokenSequence((400, 500, 600, 700), 3)]
    sglang = read_generated_scores(answer("sglang-0.5.23/probabilities_scored"), sequences)
    assert [(rounded(one.logprobs), one.firsts) for one in sglang] == [
        ([-8.65], (5328,)),
        ([-8.66], (462,)),
    ]


@loop_over(
    ("name", "ids"),
    [
        ("vllm-0.32/probabilities_chat", (3307, 1721, 1400, 4313, 5754)),
        ("sglang-0.5.23/probabilities_chat", (3225, 3720, 3672, 5319, 3423)),
    ],
)
def test_a_chat_has_the_ids_of_its_prompt_and_answer(name: str, ids: Any) -> None:
    read = read_chat(answer(name), 3)
    assert (read.prompt_ids, read.token_ids, len(read.logprobs)) == (CHAT_PROMPT, ids, 5)
    # vLLM lists the sampled token in place of the last one.
    assert {len(each) for each in require(read.top)} == {2}


@loop_over(("kind", "body", "error", "words"), TABLES["refused"])
def test_what_is_no_answer_is_refused(kind: str, body: Any, error: str, words: str) -> None:
    raw = msgspec.json.encode(body)
    errors = {"NoProbabilities": NoProbabilities, "DecodeError": msgspec.DecodeError}
    readers: dict[str, Callable[[], object]] = {
        "completions": partial(read_completions, raw, PROMPTS[:1], 2),
        "scores": partial(read_prompt_scores, raw, [TokenSequence((4, 5, 6), 1)]),
    }
    with pytest.raises(errors[error], match=words):
        readers[kind]()


def test_scores_of_other_tokens_are_refused() -> None:
    sequences = [TokenSequence((100, 200, 300, 4, 6), 4), TokenSequence((400, 500, 600, 700), 3)]
    with pytest.raises(msgspec.DecodeError, match="other tokens"):
        read_generated_scores(answer("sglang-0.5.23/probabilities_scored"), sequences)


@loop_over(("logprobs", "answer"), TABLES["texts"])
def test_texts_of_tokens_are_read(logprobs: Any, answer: Any) -> None:
    found = read_text_answer(msgspec.json.encode({"choices": [{"logprobs": logprobs}]}))
    assert json.loads(json.dumps(found)) == answer


def ask(engine: str, name: str, *given: Any, **keys: Any) -> tuple[str, dict[str, Any]]:
    """The path and the body of the request that a client's method sends."""
    posted: list[tuple[str, dict[str, Any]]] = []

    def script(asked: Asked) -> Answer:
        posted.append((asked.head.split(" ")[1], msgspec.json.decode(asked.body)))
        return Answer([whole(b"{}")])

    async def send(server: ProbabilityServer) -> None:
        async with server.open() as client:
            with pytest.raises(MeasureError):
                await getattr(client, name)(*given)

    with ScriptedServer(script) as up:
        api = PROBABILITY_APIS[engine]
        asyncio.run(send(ProbabilityServer(ServerAddress(up.base_url), "m", engine, api, **keys)))
    return posted[0]


GIVEN = {"PROMPTS": PROMPTS, "PROMPT": PROMPTS[:1], "SEQUENCES": SEQUENCES}


@loop_over(("engine", "name", "given", "keys", "path", "fields"), TABLES["asked"])
def test_what_is_asked_has_every_sampling_parameter_off(
    engine: str, name: str, given: list[Any], keys: dict[str, Any], path: str, fields: dict[str, Any]
) -> None:
    asked = [GIVEN.get(each, each) if isinstance(each, str) else each for each in given]
    found, body = ask(engine, name, *asked, **keys)
    inner = {**body.get("sampling_params", {}), **fields.get("sampling_params", {})}
    assert (found, {**body, **fields, **({"sampling_params": inner} if inner else {})}) == (path, body)
    assert "seed" not in body


def test_a_text_request_has_the_fields_of_openai_alone() -> None:
    fields = {"temperature", "top_p", "presence_penalty", "frequency_penalty", "model"}
    _, body = ask("vLLM", "sample_text", "Hi", 8)
    assert body.keys() == fields | {"prompt", "max_tokens", "logprobs"}
    _, body = ask("vLLM", "sample_text", "Hi", 8, texts=CHAT, tokens_field="max_completion_tokens")
    assert body.keys() == fields | {"messages", "max_completion_tokens", "logprobs", "top_logprobs"}
