"""Before a run whose server is to keep histories: two small requests show that it does."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.base.errors import MeasureError
from loadgen.engines.engines import UNKNOWN
from loadgen.plan import plan, profile
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run import acceptance
from loadgen.run.acceptance import TEXT, Adapter
from loadgen.server import control
from loadgen.server.exchange import ControlAnswer, ServerAddress

KEPT = ControlAnswer("/", 200, b'{"id":"resp_1","object":"response","status":"completed","output":[]}')
FORGOTTEN = ControlAnswer("/", 404, b'{"error":{"message":"Response with id \'resp_1\' not found."}}')
FAILED = ControlAnswer("/", 500, b"Internal Server Error")
NAMELESS = ControlAnswer("/", 200, b'{"id":null,"object":"response","status":"completed","output":[]}')
IN_BAND = ControlAnswer("/", 200, b'{"error":{"message":"overloaded"}}')
ODD = ControlAnswer("/", 200, b"<html>")
TALKS = {"turns": 2, "num_sessions": 2, "input_len": 9, "output_len": 9, "prefix_len": 9}


def warm_up(answers: list[ControlAnswer], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is sent before the run, to a server with these answers."""
    kept = {"backend": "openai-responses", "assistant": "server", "max_concurrency": 1, "num_warmups": 0}
    of = plan.make(profile.build({**TALKS, **kept}), ModelTarget(UNKNOWN, "m"), Seed(1))
    sent: list[dict[str, Any]] = []

    def send(_access: object, path: str, body: dict[str, Any], *_: object, **__: object) -> ControlAnswer:
        assert path == of.path
        sent.append(body)
        return answers[len(sent) - 1]

    monkeypatch.setattr(control, "send_request", send)
    monkeypatch.setattr(acceptance.Adapter, "adapt", lambda _, made: made)
    fields: dict[str, Any] = {"check_alive": None, "interrupts": None, "title": ""}
    adapter = Adapter(ServerAddress("http://h"), ModelTarget(UNKNOWN, "m"), {}, **fields)
    none: Any = None
    adapter.warm_up(of, none, none)
    return sent


def test_the_second_request_names_the_answer_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = warm_up([KEPT, KEPT], monkeypatch)
    assert (first["store"], first["stream"], first["input"]) == (True, False, TEXT)
    assert first["instructions"] == TEXT  # the run's own would be in the prefix cache
    assert second == {**first, "previous_response_id": "resp_1"}


@pytest.mark.parametrize("answer", [FAILED, ODD, IN_BAND])
def test_a_request_that_fails_shows_nothing(answer: ControlAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(warm_up([answer], monkeypatch)) == 1


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([KEPT, FORGOTTEN], "404: Response with id 'resp_1' not found."),
        ([NAMELESS], "its response has no id"),
    ],
)
def test_a_server_that_forgets_is_named_with_the_way_to_have_it_keep(
    answers: list[ControlAnswer], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MeasureError) as error:
        warm_up(answers, monkeypatch)
    assert str(error.value) == (
        f"http://h/v1/responses keeps no history of sessions ({why}): start vLLM with "
        "VLLM_ENABLE_RESPONSES_API_STORE=1, SGLang with --enable-response-store, or pass --assistant live"
    )
