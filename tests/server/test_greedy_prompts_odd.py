"""Answers to the fingerprint's prompts that are odd: each costs its prompt, and nothing else."""

from __future__ import annotations

import pytest

from builders import recorded
from builders.loops import loop_over
from fakes.scripted_server import HEAD, LAST, Answer, Asked, ScriptedServer, chunk, token
from loadgen.plan import plan
from loadgen.plan.plan_inputs import ModelTarget, Seed
from loadgen.plan.profile import build
from loadgen.server import greedy_prompts
from loadgen.server.answer_check import PROMPTS
from loadgen.server.discovery import ServerAddress
from server.test_greedy_prompts import COUNT, SGLANG, TOKENIZER, VLLM, asked_of, saying

GENERATED = b'data: {"text":"","output_ids":[%b],"meta_info":{"completion_tokens":1%b}}\n\n'
LENGTH = b',"finish_reason":{"type":"length"}'
NUMBER = "malformed: event 1: Expected `int` "


@pytest.mark.parametrize(
    ("event", "failure"),
    [
        (b'data: {"usage":{"completion_tokens":%d}}\n\n' % 10**30, NUMBER),
        (b'data: {"usage":{"prompt_tokens":-1}}\n\n', NUMBER),
        (b'data: {"x":' + b"[" * 20_000 + b"\n\n", "malformed: event 1: maximum recursion depth"),
        (b'data: {"detail":"worker died"}\n\n', "in-band-error: worker died"),
        (b"data: " + b"x" * (17 << 20), "malformed: an answer of more than 16 MiB"),
        (GENERATED % (b"5", b'0000000000,"x":1'), NUMBER),
        (GENERATED % (b"-1", LENGTH), "malformed: invalid token ids"),
        (GENERATED % (b"9" * 30, LENGTH), "malformed: invalid token ids"),
        (GENERATED % (b"99999999", LENGTH), ""),
        (GENERATED % (b"[" * 20_000, LENGTH), "malformed: event 1: maximum recursion depth"),
    ],
    ids=["usage", "below 0", "deep", "detail", "long", "count", "id below 0", "id", "unknown id", "deep ids"],
)
def test_one_odd_answer_costs_that_prompt_alone(event: bytes, failure: str) -> None:
    generate = b"output_ids" in event
    good = GENERATED % (b"7", LENGTH) if generate else token("a", "length")

    def script(asked: Asked) -> Answer:
        odd = PROMPTS[3].text[:20].encode() in asked.body
        return Answer([HEAD, chunk(event if odd else good), chunk(b"data: [DONE]\n\n"), LAST])

    with ScriptedServer(script) as server:
        engine, settings = (SGLANG, {"backend": "sglang"}) if generate else (VLLM, {})
        found = asked_of(server.base_url, engine, settings, TOKENIZER)
    said = [answer.failure for answer in found.answers]
    assert said[3].startswith(failure)
    assert bool(said[3]) == bool(failure)
    assert said[:3] + said[4:] == [""] * (COUNT - 1)
    assert all(answer.text or answer.token_ids for answer in found.answers if not answer.failure)


class Strict:
    """A tokenizer that raises for an id it does not know, as those written in Python do."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1, 2]

    def decode(self, token_ids: list[int]) -> str:
        raise self.error


@loop_over("error", [IndexError("piece id"), KeyError(7), TypeError("None"), OverflowError()])
def test_ids_that_no_tokenizer_knows_are_that_prompts_failure(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = recorded.reads("sglang-0.5.23-skip-tokenizer/generate_err_text")
    ids = recorded.reads("sglang-0.5.23-skip-tokenizer/generate_stream")
    monkeypatch.setattr(greedy_prompts, "load_tokenizer", lambda *_: Strict(error))
    with ScriptedServer(lambda asked: Answer(refusal if b'"text"' in asked.body else ids)) as server:
        found = asked_of(server.base_url, SGLANG, {"backend": "sglang"}, TOKENIZER)
    assert {answer.failure for answer in found.answers} == {
        "malformed: token ids that the tokenizer does not know"
    }


def test_a_secret_that_the_server_repeats_is_hidden() -> None:
    workload = build({"input_len": 8, "output_len": 4, "num_prompts": 1})
    subject = ModelTarget(VLLM, "m", vocab_size=100)
    made = plan.make(workload, subject, Seed(1))
    with ScriptedServer(saying(HEAD, chunk(token("the key sk-1", "stop")), LAST)) as server:
        found = greedy_prompts.ask_prompts(
            ServerAddress(server.base_url),
            subject,
            made,
            lambda _: None,
            hide=lambda s: s.replace("sk-1", "*"),
        )
    assert [answer.text for answer in found.answers] == ["the key *"] * COUNT
