"""Runs of conversations against a real server, each with what its sessions suffer from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from builders.provocations import Beside, Provocation, engine, failing, known, null, scripted, stalled
from fakes.counting_api import CountingApi, count
from fakes.hosted_api import openai_error
from fakes.scripted_server import Answer, End, api, stream
from loadgen.verdict.run_facts import Facts

_TALKS = "--backend openai-chat --dataset-path talks.jsonl"
_WORDS = "one two three four five six seven eight nine ten " * 4
_MOST = 250  # tokens of a model's context


def talking(turns: Sequence[int], delay_s: float = 0.0, beside: Beside | None = None) -> Beside:
    """A file of conversations with so many turns each, and what else happens beside the run."""

    @contextmanager
    def lies_there(base_url: str) -> Iterator[None]:
        rows = [row for name, planned in enumerate(turns) for row in _rows(name, planned, delay_s)]
        Path("talks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
        if beside is None:
            yield
            return
        with beside(base_url):
            yield

    return lies_there


def _rows(name: int, turns: int, delay_s: float) -> Iterator[dict[str, Any]]:
    for turn in range(turns):
        row = {"conversation_id": f"c{name}", "content": f"{name} {turn} {_WORDS}"}
        yield {**row, "turn": 2 * turn + 1, "role": "user", "max_tokens": 5, "delay_seconds": delay_s}
        yield {**row, "turn": 2 * turn + 2, "role": "assistant"}


def short_of_context() -> AbstractContextManager[str]:
    """A model that takes prompts of _MOST tokens."""

    def refusal(body: Mapping[str, Any]) -> dict[str, Any] | None:
        words = f"This model's maximum context length is {_MOST} tokens. Please reduce the length."
        return openai_error(words) if count(body) > _MOST else None

    return scripted(CountingApi(refusal=refusal, gap_s=0.02))


def closing_each() -> AbstractContextManager[str]:
    """Five tokens, and the connection is closed after each answer."""
    return scripted(api(lambda _: Answer(stream(5, 0.02).pieces, End.CLOSE)))


def few_hits(facts: Facts) -> dict[str, object]:
    """The server counts few of the cached tokens that it reports in usage."""
    window = facts.window
    if window is None or window.prefix_hits is None:
        return {}
    return {"window": window.model_copy(update={"prefix_hits": 100})}


_SHORT = frozenset({"first-wave", "ramp-and-drain"})
OF_SESSIONS: dict[str, Provocation] = {
    "turns that fail in conversations": Provocation(
        failing(5),
        f"{_TALKS} --max-concurrency 2",
        {"sessions-ended-early", "many-failures"},
        may=_SHORT,
        beside=talking([4] * 8),
    ),
    "conversations longer than the model's context": Provocation(
        short_of_context,
        f"{_TALKS} --max-concurrency 2",
        {"context-limit"},
        may=_SHORT | {"early-ends"},
        beside=talking([6] * 6),
    ),
    "a server without a prefix cache": Provocation(
        engine("--enable-prompt-tokens-details", "--no-enable-prefix-caching"),
        f"{_TALKS} --max-concurrency 2",
        {"session-forgotten"},
        may=_SHORT,
        beside=talking([4] * 6),
    ),
    "cached tokens that the server counts otherwise": Provocation(
        engine("--enable-prompt-tokens-details"),
        f"{_TALKS} --max-concurrency 2",
        {"cached-tokens-differ"},
        may=_SHORT,
        beside=talking([4] * 6),
        played=known(few_hits),
    ),
    "a server that closes between two turns": Provocation(
        closing_each,
        f"{_TALKS} --max-concurrency 2",
        {"reconnected"},
        may=_SHORT | {"many-resent"},
        beside=talking([3] * 4, 0.4),
    ),
    "one conversation longer than all others": Provocation(
        engine(),
        f"{_TALKS} --max-concurrency 2",
        {"sessions-ran-dry"},
        may=_SHORT,
        beside=talking([2, 20]),
    ),
    "users who wait for their answers": Provocation(
        null(ttft_ms=250),
        f"{_TALKS} --users 2 --user-rate 5",
        {"users-waited"},
        may=_SHORT,
        beside=talking([4] * 4),
    ),
    "a client that hardly runs, between two turns": Provocation(
        null(),
        f"{_TALKS} --max-concurrency 4",
        {"turns-late"},
        may=_SHORT | {"reads-late", "messages-together", "client-stopped", "late-bodies", "busy-loop"},
        beside=talking([8] * 4, 0.1, beside=stalled),
    ),
}
