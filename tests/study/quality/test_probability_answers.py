"""What recorded answers of each engine are read as, and what is asked of each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over
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


def completion(**choice: Any) -> bytes:
    return msgspec.json.encode({"choices": [choice]})


@loop_over(
    ("body", "error", "words"),
    [
        (completion(text="a"), NoProbabilities, "no log-probabilities"),
        (completion(logprobs={"token_logprobs": [-1.0]}), NoProbabilities, "no ids"),
        (completion(token_ids=[1, 2], logprobs={"token_logprobs": [-1.0]}), msgspec.DecodeError,
         "2 token ids"),
        (b'{"choices": []}', msgspec.DecodeError, "0 responses to 1"),
        (b'{"choices": [{"token_ids": [-1]}]}', msgspec.DecodeError, ">= 0"),
        (b"<html>", msgspec.DecodeError, "malformed"),
    ],
)  # fmt: skip
def test_what_is_no_sampled_answer_is_refused(body: bytes, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        read_completions(body, PROMPTS[:1], 2)


@loop_over(
    ("positions", "error", "words"),
    [
        (None, NoProbabilities, "no log-probabilities"),
        ([None, {"5": {"logprob": -1.0}}], msgspec.DecodeError, "2 scores of 3 tokens in one prompt"),
        ([None, {"5": {"logprob": -1.0}}, {"7": {"logprob": -1.0}}], msgspec.DecodeError, "token 6"),
        ([None, {"5": {"logprob": -1.0}}, None], msgspec.DecodeError, "token 6"),
    ],
)
def test_what_does_not_score_the_tokens_is_refused(positions: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        read_prompt_scores(completion(prompt_logprobs=positions), [TokenSequence((4, 5, 6), 1)])


def test_scores_of_other_tokens_are_refused() -> None:
    sequences = [TokenSequence((100, 200, 300, 4, 6), 4), TokenSequence((400, 500, 600, 700), 3)]
    with pytest.raises(msgspec.DecodeError, match="other tokens"):
        read_generated_scores(answer("sglang-0.5.23/probabilities_scored"), sequences)


@loop_over(
    ("logprobs", "answer"),
    [
        ({"tokens": ["a", "bytes:\\xe4\\xb8", "é"], "token_logprobs": [-1.0, -2.0, None]},
         (("a", None, "é"), (-1.0, -2.0, -9999.0), ((), (), ()))),
        ({"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0, "b": -0.5}]},
         (("a",), (-1.0,), ((-1.0, -0.5),))),
        ({"content": [{"token": "?", "bytes": [195], "logprob": -1.0}, {"token": "\ufffd", "logprob": -2.0}]},
         ((None, None), (-1.0, -2.0), ((), ()))),
    ],
)  # fmt: skip
def test_texts_of_tokens_are_read(logprobs: Any, answer: Any) -> None:
    assert read_text_answer(completion(logprobs=logprobs)) == answer


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


def test_every_sampling_parameter_is_sent_as_off() -> None:
    neutral = {
        "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip
    more = {"top_k": -1, "repetition_penalty": 1.0}
    prompts = [list(prompt) for prompt in PROMPTS]
    path, body = ask("vLLM", "sample", PROMPTS, 64)
    sent = {"prompt": prompts, "max_tokens": 64, "logprobs": 20}
    assert (path, {**neutral, **more, **sent}.items() <= body.items()) == ("/v1/completions", True)
    assert "seed" not in body
    path, body = ask("SGLang", "sample", PROMPTS, 64)
    assert (path, body["input_ids"], body["top_logprobs_num"]) == ("/generate", prompts, 20)
    assert {**neutral, **more, "max_new_tokens": 64}.items() <= body["sampling_params"].items()
    path, body = ask("llama.cpp server", "sample", PROMPTS[:1], 64)
    assert (path, body["prompt"], body["n_probs"]) == ("/completion", prompts[0], 20)
    assert {**neutral, "top_k": 0, "repeat_penalty": 1.0, "samplers": ["temperature"]}.items() <= body.items()
    path, body = ask("vLLM", "chat", "Hi", 8)
    assert {**neutral, **more, "logprobs": True}.items() <= body.items()


def test_given_tokens_are_sent_as_a_prompt() -> None:
    ids = [list(one.token_ids) for one in SEQUENCES]
    for alternatives in (1, 0):
        _, body = ask("vLLM", "score", SEQUENCES, alternatives=alternatives)
        assert (body["prompt"], body["prompt_logprobs"]) == (ids, alternatives)
    _, body = ask("SGLang", "score", SEQUENCES)
    assert (body["input_ids"], body["logprob_start_len"], body["top_logprobs_num"]) == (ids, [2, 1], 1)


def test_a_text_is_sent_to_be_tokenized() -> None:
    sent = {"model": "m", "prompt": "Hi", "add_special_tokens": True}
    assert ask("vLLM", "tokenize", "Hi") == ("/tokenize", sent)
    assert ask("llama.cpp server", "tokenize", "Hi")[1]["content"] == "Hi"


def test_a_text_request_has_the_fields_of_openai_alone() -> None:
    fields = {"temperature", "top_p", "presence_penalty", "frequency_penalty", "model"}
    _, body = ask("vLLM", "sample_text", "Hi", 8)
    assert body.keys() == fields | {"prompt", "max_tokens", "logprobs"}
    _, body = ask("vLLM", "sample_text", "Hi", 8, texts=CHAT, tokens_field="max_completion_tokens")
    assert body.keys() == fields | {"messages", "max_completion_tokens", "logprobs", "top_logprobs"}
