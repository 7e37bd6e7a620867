"""Runs whose answers report their own timings, of a server with slots: what can be wrong with them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from builders.made_cases import INPUT, OUTPUT, TPOT_MS, TTFT_MS, Rows, changed, closed, failed, observed, run
from builders.provocations import Provocation, Server
from fakes.scripted_server import DONE, HEAD, LAST, Answer, Asked, api, chunk, token, whole
from fakes.virtual_network import VirtualServer
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Server as ServerFacts
from loadgen.transport.failure import FailureKind
from loadgen.verdict.evidence import RunEvidence

MS = 1_000_000
PROPS = {"build_info": "b1-0c1e570", "total_slots": 2, "default_generation_settings": {"n_ctx": 4096}}
LLAMACPP = ServerFacts(url="http://127.0.0.1:8080/v1/completions", engine="llama.cpp server", model="m")
OF_CANCELLED: dict[str, tuple[RunEvidence, str]] = {
    "all-cancelled": (
        run(failed(1, FailureKind.USER_CANCELLED), window=None),
        "320 of 320 requests were cancelled, none was completed"),
    "no-abort": (run(failed(10, FailureKind.USER_CANCELLED), window=observed()),
                 "the server finished 32 of the 32 requests that were cancelled"),
}  # fmt: skip


def timed(**other: Any) -> Rows:
    """Answers whose timings are the client's own figures, but for `other`."""
    told = {
        "cached_tokens": 0, "server_prompt_tokens": INPUT, "server_cached_tokens": 0,
        "server_output_tokens": OUTPUT, "server_prefill_ns": int((TTFT_MS - 2) * MS),
        "server_decode_ns": int(TPOT_MS * (OUTPUT - 1) * MS),
    }  # fmt: skip
    return changed(closed(), **(told | other))


def slots(count: int, rows: Rows | None = None) -> RunEvidence:
    """A run at a server that has so many slots."""
    return run(timed() if rows is None else rows, server=replace(LLAMACPP, slots=count))


OF_ANSWERS: dict[str, tuple[RunEvidence, str]] = {
    "few-slots": (slots(4), "the server has 4 slots for 8 requests at once: TTFT includes their queue (2 of"),
    "timings-differ": (
        run(timed(server_output_tokens=OUTPUT - 1)),
        "output tokens differ in 320 of 320 responses: 3520 by usage, 3200 by timings"),
}  # fmt: skip


def _usage(prompt: int, generated: int, prompt_ms: float, predicted_ms: float) -> bytes:
    timings = {"cache_n": 0, "prompt_n": prompt, "prompt_ms": prompt_ms}
    timings |= {"predicted_n": generated, "predicted_ms": predicted_ms}
    cached = {"cached_tokens": 0}
    counts = {"prompt_tokens": prompt, "completion_tokens": generated, "prompt_tokens_details": cached}
    return b"data: %b\n\n" % json.dumps({"choices": [], "usage": counts, "timings": timings}).encode()


def slotted(predicted_ms: float) -> Server:
    """A llama.cpp of two slots: five tokens 20 ms apart, and timings of its own."""

    def answer(asked: Asked) -> Answer:
        events = [*[token() for _ in range(4)], token("z", "length"), _usage(5, 5, 15.0, predicted_ms), DONE]
        pieces = [piece for event in events[:5] for piece in (0.02, chunk(event))]
        return Answer([HEAD, *pieces, *map(chunk, events[5:]), LAST])

    plain = api(answer)

    def script(asked: Asked) -> Answer:
        if asked.head.startswith("GET /props "):
            return Answer([whole(json.dumps(PROPS).encode())])
        return plain(asked)

    return lambda: VirtualServer(script)


def _at_once(streams: int) -> str:
    return (
        f"--random-input-len 5 --random-output-len 5 --num-prompts {20 * streams} --max-concurrency {streams}"
    )


OF_SLOTS = {
    # A server that says it took longer than the messages did: a machine under load is no doubt.
    "a server of two slots for four": Provocation(slotted(1000.0), _at_once(4), {"few-slots"}),
    "timings of a server further off": Provocation(slotted(40.0), _at_once(2), {"timings-differ"}),
}


def drafted() -> Rows:
    """Answers whose last message carries the last two tokens."""
    rows = closed()
    for row in rows:
        row.arrival_ns = row.arrival_ns[:-1]
        row.tokens = np.array([1] * (OUTPUT - 2) + [2], np.int64)
    return rows


def drafting(rows: Rows, accepted: int) -> RunEvidence:
    """A run of text at a server that accepted so many tokens of drafts of three."""
    window = observed(
        drafts=2000, draft_tokens=6000, accepted_tokens=accepted, accepted_by_position=(accepted, 0, 0)
    )
    return run(rows, prompt_format="corpus", window=window)


OF_DRAFTS: dict[str, tuple[RunEvidence, str]] = {
    "steps-hidden": (
        drafting(closed(), 2000),
        "2000 draft tokens were accepted, and each token has a chunk of its own",
    ),
    "drafts-differ": (
        drafting(drafted(), 2000),
        "accepted draft tokens: 320 by the chunks, 2000 by the server's counters",
    ),
}
