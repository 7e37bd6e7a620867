"""Runs of conversations in virtual time, each with what its sessions suffer from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from builders import provocations as made
from builders.provocations import Prepare, Provocation, changed_facts, failing
from fakes.counting_api import CountingApi, count
from fakes.hosted_api import openai_error
from fakes.scripted_server import Answer, End, api, stream
from fakes.virtual_network import VirtualServer
from fakes.virtual_servers import engine_server, null_server
from loadgen.facts.run_facts import Facts

_TALKS = "--backend openai-chat --dataset-path talks.jsonl"
_WORDS = "one two three four five six seven eight nine ten " * 4
_MOST = 250  # tokens of a model's context


def talks(turns: Sequence[int], delay_s: float = 0.0, tokens: int = 5) -> Prepare:
    """A file of conversations with so many turns each."""
    rows = [_rows(name, planned, delay_s, tokens) for name, planned in enumerate(turns)]
    return made.rows_in("talks.jsonl", [row for each in rows for row in each])


def _rows(name: int, turns: int, delay_s: float, tokens: int) -> Iterator[dict[str, Any]]:
    for turn in range(turns):
        row = {"conversation_id": f"c{name}", "content": f"{name} {turn} {_WORDS}"}
        yield {**row, "turn": 2 * turn + 1, "role": "user", "max_tokens": tokens, "delay_seconds": delay_s}
        yield {**row, "turn": 2 * turn + 2, "role": "assistant"}


def short_of_context() -> VirtualServer:
    """A model that takes prompts of _MOST tokens."""

    def refusal(body: Mapping[str, Any]) -> dict[str, Any] | None:
        words = f"This model's maximum context length is {_MOST} tokens. Please reduce the length."
        return openai_error(words) if count(body) > _MOST else None

    return VirtualServer(CountingApi(refusal=refusal, gap_s=0.02))


def closing_each() -> VirtualServer:
    """Five tokens, and the connection is closed after each answer."""
    return VirtualServer(api(lambda _: Answer(stream(5, 0.02).pieces, End.CLOSE)))


def few_hits(facts: Facts) -> dict[str, Any]:
    """The server counts few of the cached tokens that it reports in usage."""
    window = facts.window
    if window is None or window.prefix_hits is None:
        return {}
    return {"window": window.model_copy(update={"prefix_hits": 100})}


_CACHING = partial(engine_server, "--enable-prompt-tokens-details")
OF_SESSIONS: dict[str, Provocation] = {
    "turns that fail in conversations": Provocation(
        failing(5),
        f"{_TALKS} --max-concurrency 2",
        {"sessions-ended-early", "many-failures"},
        prepare=talks([4] * 16),
    ),
    "conversations longer than the model's context": Provocation(
        short_of_context,
        f"{_TALKS} --max-concurrency 2",
        {"context-limit"},
        prepare=talks([6] * 16, tokens=3),
    ),
    "a server without a prefix cache": Provocation(
        partial(engine_server, "--enable-prompt-tokens-details", "--no-enable-prefix-caching"),
        f"{_TALKS} --max-concurrency 2",
        {"session-forgotten"},
        prepare=talks([4] * 16),
    ),
    "cached tokens that the server counts otherwise": Provocation(
        _CACHING,
        f"{_TALKS} --max-concurrency 2",
        {"cached-tokens-differ"},
        prepare=talks([4] * 16),
        play=changed_facts(few_hits),
    ),
    "a server that closes between two turns": Provocation(
        closing_each,
        f"{_TALKS} --max-concurrency 2",
        {"reconnected", "many-resent"},
        prepare=talks([3] * 16, 0.4),
    ),
    "one conversation longer than all others": Provocation(
        _CACHING, f"{_TALKS} --max-concurrency 2", {"sessions-ran-dry"}, prepare=talks([*[2] * 20, 40])
    ),
    "users who wait for their answers": Provocation(
        partial(null_server, ttft_ms=250),
        f"{_TALKS} --users 2 --user-rate 5",
        {"users-waited"},
        prepare=talks([4] * 16),
    ),
    "a client that hardly runs, between two turns": Provocation(
        null_server,
        f"{_TALKS} --max-concurrency 4",
        {"turns-late", "reads-late", "busy-loop"},
        prepare=talks([8] * 24, 0.1),
        play=made.pauses(47, every_ms=64),
    ),
}
