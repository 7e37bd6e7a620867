"""Exported: a plan's requests as rows of JSON; vLLM's `custom` reads those of texts, our reader all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from loadgen.workload.plan import Plan
from loadgen.workload.requests import UNKNOWN_LEN, PromptRequests

IDS, TEXTS, BODIES = "token ids", "texts", "whole bodies"
Decode = Callable[[list[int]], str]


def form(made: Plan, decode: Decode | None = None) -> str:
    """What the rows of a plan hold: IDS, TEXTS or BODIES; ids are texts where there is what decodes them."""
    if not isinstance(made.requests, PromptRequests):
        return BODIES
    ids = decode is None and isinstance(made.requests.prompt(0), list)
    return IDS if ids else TEXTS


def rows(made: Plan, decode: Decode | None = None) -> Iterator[bytes]:
    """Every request as a line of JSON: prompt and length, or what its body has of its own.

    What all of them share, and the model's name where it is the plan's, is left to the flags of who sends it.
    """
    for i in range(len(made)):
        yield msgspec.json.encode(_row(made, i, decode)) + b"\n"


def _row(made: Plan, i: int, decode: Decode | None) -> dict[str, Any]:
    requests = made.requests
    if not isinstance(requests, PromptRequests):
        body = requests.request(i, made.dialect, made.model)
        return {name: value for name, value in body.items() if name != "model" or value != made.model}
    prompt = requests.prompt(i)
    text = decode(prompt) if decode is not None and not isinstance(prompt, str) else prompt
    length = int(requests.output_lens[i])
    return {"prompt": text} if length == UNKNOWN_LEN else {"prompt": text, "output_tokens": length}
