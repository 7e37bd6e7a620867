"""Exported: a plan's requests as rows of JSON; vLLM's `custom` reads those of texts, our reader all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from loadgen.base.clock import SECOND_NS
from loadgen.plan.plan import Plan
from loadgen.plan.requests import UNKNOWN_LEN, MadeTurns, PromptRequests
from loadgen.plan.turns import Turns

IDS, TEXTS, BODIES, CONVERSATIONS = "token ids", "texts", "whole bodies", "conversations"
Decode = Callable[[list[int]], str]


def form(made: Plan, decode: Decode | None = None) -> str:
    """What the rows of a plan hold: IDS, TEXTS, BODIES or CONVERSATIONS; ids are texts where `decode` is."""
    if isinstance(made.requests, MadeTurns):
        return CONVERSATIONS
    if not isinstance(made.requests, PromptRequests):
        return BODIES
    ids = decode is None and isinstance(made.requests.prompt(0), list)
    return IDS if ids else TEXTS


def rows(made: Plan, decode: Decode | None = None) -> Iterator[bytes]:
    """Every request as a line of JSON: prompt and length, or what its body has of its own.

    What all of them share, and the model's name where it is the plan's, is left to the flags of who sends it.
    Of conversations that are made here: a line for each message, as MLPerf's schema has them.
    """
    if isinstance(made.requests, MadeTurns) and made.turns is not None:
        yield from (msgspec.json.encode(row) + b"\n" for row in _messages(made.requests, made.turns))
        return
    for i in range(len(made)):
        yield msgspec.json.encode(_row(made, i, decode)) + b"\n"


def _messages(requests: MadeTurns, turns: Turns) -> Iterator[dict[str, Any]]:
    """Each user's message, after its pause and with the length of its answer, and then that answer."""
    for session in range(len(turns)):
        begin, system = int(turns.begins[session]), requests.system(session)
        for i in range(begin, turns.end(session)):
            same = {"conversation_id": f"session-{session}"}
            row = {**same, "turn": 2 * (i - begin) + 1, "role": "user", "content": requests.message(i)}
            if system and i == begin:
                row["system"] = system
            if turns.delays_ns[i]:
                row["delay_seconds"] = int(turns.delays_ns[i]) / SECOND_NS
            row["max_completion_tokens"] = int(requests.output_lens[i])
            yield row
            turn = 2 * (i - begin) + 2
            yield {**same, "turn": turn, "role": "assistant", "content": requests.answer(i)}


def _row(made: Plan, i: int, decode: Decode | None) -> dict[str, Any]:
    requests = made.requests
    if not isinstance(requests, PromptRequests):
        body = requests.request(i, made.dialect, made.model)
        return {name: value for name, value in body.items() if name != "model" or value != made.model}
    prompt = requests.prompt(i)
    text = decode(prompt) if decode is not None and not isinstance(prompt, str) else prompt
    length = int(requests.output_lens[i])
    return {"prompt": text} if length == UNKNOWN_LEN else {"prompt": text, "output_tokens": length}
