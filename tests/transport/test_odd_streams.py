"""Odd streams: every place where a token can be, every way a count can be wrong, over every transport.

Of each the figures are right, or the verdict is SUSPECT with the cause. All streams have one clock: the first
of forty tokens 80 ms after the request, then one every 10 ms, as the server wrote them in virtual time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from builders import made_cases, recorded
from builders.loops import loop_over, loop_over_named
from fakes.scripted_server import DONE, HEAD, LAST, Answer, chunk, drive, job_of
from fakes.virtual_network import VirtualServer
from loadgen.records.decode import Decoder
from loadgen.verdict import verdict
from loadgen.verdict.evidence import RunEvidence
from transport.test_faults import EVERY_TRANSPORT

TOKENS, PROMPT, REQUESTS, FIRST_S, GAP_S = 40, 5, 8, 0.080, 0.010
TTFT_MS, TPOT_MS = FIRST_S * 1e3, GAP_S * 1e3
WORDS = [f" w{i}" for i in range(TOKENS)]
ALL = "".join(WORDS)
Event = dict[str, Any]
Timed = tuple[float, Event]  # seconds to wait, and what comes then


def counts(answer: int, prompt: int = PROMPT, **more: Any) -> Event:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer, **more}


def says(delta: Any, finish: str | None = None, used: Event | None = None, key: str = "delta") -> Event:
    message: Event = {"choices": [{"index": 0, key: delta, "finish_reason": finish}]}
    return message if used is None else {**message, "usage": used}


def pause(i: int) -> float:
    return GAP_S if i else FIRST_S


def streamed(
    tokens: Iterable[Event],
    first: Event | None = None,
    last: Event | None = None,
    used: Event | None = None,
    finish: str | None = "length",
) -> list[Timed]:
    """A role, the tokens at their times, an end, and a usage on its own; `used` None: the right one."""
    timed: list[Timed] = [(0, first or says({"role": "assistant", "content": ""}))]
    timed += [(pause(i), token) for i, token in enumerate(tokens)]
    timed.append((0, last or says({}, finish)))
    timed.append((0, {"choices": [], "usage": used or counts(TOKENS)}))
    return timed


def each(delta: Callable[[int, str], Any], **more: Any) -> list[Timed]:
    """A stream whose deltas are made of each word."""
    return streamed([says(delta(i, word)) for i, word in enumerate(WORDS)], **more)


def content(**more: Any) -> list[Timed]:
    """A stream of the usual deltas."""
    return each(lambda i, w: {"content": w}, **more)


def running(count: Callable[[int], Event], **more: Any) -> list[Timed]:
    """A stream whose messages each have a count."""
    return streamed([says({"content": w}, used=count(i)) for i, w in enumerate(WORDS)], **more)


def together(size: int) -> list[Timed]:
    """A stream of which so many messages come at once, when the last of them is there."""
    timed = content()
    held: list[Timed] = []
    for first in range(0, len(timed), size):
        part = timed[first : first + size]
        waited_s = sum(seconds for seconds, _ in part)
        held += [(waited_s if not place else -1, event) for place, (_, event) in enumerate(part)]
    return held


def text(i: int, **more: Any) -> Event:
    return {"choices": [{"index": 0, "text": WORDS[i], "finish_reason": None, **more}]}


def generated(i: int, count: int, finish: Any = None) -> Event:
    meta: Event = {"prompt_tokens": PROMPT, "completion_tokens": count, "finish_reason": None}
    if i == TOKENS - 1:
        meta |= {"finish_reason": finish or {"type": "length"}, "completion_tokens": TOKENS}
    return {"text": "".join(WORDS[: i + 1]), "meta_info": meta}


def of_generate(count: Callable[[int], int]) -> list[Timed]:
    return [(pause(i), generated(i, count(i))) for i in range(TOKENS)]


def of_messages(added: Callable[[int], Event]) -> list[Timed]:
    """Anthropic's events: a begin at admission, what is added to its block, a ping in between, an end."""
    opened: Event = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}
    timed: list[Timed] = [
        (0, {"type": "message_start", "message": {"usage": {"input_tokens": PROMPT, "output_tokens": 1}}}),
        (0, opened),
    ]
    for i in range(TOKENS):
        timed += [(pause(i), {"type": "content_block_delta", "delta": added(i)}), (0, {"type": "ping"})]
    end = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}
    return [*timed, (0, {**end, "usage": {"output_tokens": TOKENS}}), (0, {"type": "message_stop"})]


def of_responses(kind: Callable[[int], str]) -> list[Timed]:
    """OpenAI's typed events: begins at admission, deltas of these kinds, all of it again, an end."""
    opened: Event = {"type": "response.output_item.added", "item": {"type": "message", "content": []}}
    timed: list[Timed] = [
        (0, {"type": "response.created", "response": {"status": "in_progress"}}),
        (0, opened),
    ]
    timed += [(pause(i), {"type": f"response.{kind(i)}.delta", "delta": WORDS[i]}) for i in range(TOKENS)]
    part = {"type": "output_text", "text": ALL, "annotations": []}
    item = {"type": "message", "role": "assistant", "content": [part]}
    timed += [(0, {"type": "response.output_text.done", "text": part["text"]})]
    timed += [(0, {"type": "response.output_item.done", "item": item})]
    used = {"input_tokens": PROMPT, "output_tokens": TOKENS, "total_tokens": PROMPT + TOKENS}
    end = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    last = {"type": "response.incomplete", "response": {**end, "output": [item], "usage": used}}
    return [*timed, (0, last)]


def thought(i: int) -> Event:
    return {"type": "thinking_delta", "thinking": WORDS[i]}


def half_thought(thought: Callable[[str], Any], **more: Any) -> list[Timed]:
    return each(lambda i, w: thought(w) if i < 20 else {"content": w}, **more)


def tool(**function: Any) -> Event:
    return {"tool_calls": [{"index": 0, "function": function}]}


ROLE = {"role": "assistant", "content": ""}
TWENTY_HIDDEN = counts(TOKENS, completion_tokens_details={"reasoning_tokens": 20})
HIDDEN = [says({"content": w}) for w in WORDS[20:]]

# Streams by name, which begins with the API where that is not chat. The figures of these are right; the first
# text of the response itself comes with the first token,
AT_FIRST: dict[str, list[Timed]] = {
    "content": content(),
    "refusal": each(lambda i, w: {"refusal": w}),
    "function_call": each(lambda i, w: {"function_call": {"arguments": w}}),
    "tool_calls": each(lambda i, w: tool(name=None, arguments=w)),
    "arguments that are objects": each(lambda i, w: tool(arguments={"a": w})),
    "a transcript of audio": each(lambda i, w: {"audio": {"transcript": w}}),
    "parts of text": each(lambda i, w: {"content": [{"type": "text", "text": w}]}),
    "a part that is no list": each(lambda i, w: {"content": {"type": "text", "text": w}}),
    "text in a chat": streamed(map(text, range(TOKENS))),
    "message for delta": streamed(says({"content": w}, key="message") for w in WORDS),
    "the whole message at the end": content(last=says({"content": ALL}, "length", key="message")),
    "completions": streamed(map(text, range(TOKENS)), text(0, text="")),
    "completions, a delta": content(),
    "completions, a message": streamed(says({"content": w}, key="message") for w in WORDS),
    "counts of zero": running(lambda i: counts(0, 0)),
    "counts of zero, the prompt known": running(lambda i: counts(0)),
    "counts that run along": running(lambda i: counts(i + 1)),
    "counts that are one behind": running(counts),
    "the whole count on each": running(lambda i: counts(TOKENS)),
    "the count of each alone": running(lambda i: counts(1)),
    "a count at every tenth": running(lambda i: counts((i + 1) // 10 * 10)),
    "a count at admission": running(lambda i: counts(i + 1), first=says(ROLE, used=counts(1))),
    "a count at admission, no role": running(
        lambda i: counts(i + 1), first=says({"content": ""}, used=counts(1))
    ),
    "the whole count at admission": running(lambda i: counts(TOKENS), first=says(ROLE, used=counts(TOKENS))),
    "completions, ids at the end": streamed(
        text(i, token_ids=[*range(TOKENS)] if i == 39 else []) for i in range(TOKENS)
    ),
    "no finish reason": running(lambda i: counts(i + 1))[1:-2],
    "generate": of_generate(lambda i: i + 1),
    "generate, a finish reason that is text": [
        *of_generate(lambda i: i + 1)[:-1],
        (GAP_S, generated(39, TOKENS, "length")),
    ],
    "generate, counts of zero": of_generate(lambda i: 0),
    "generate, the whole count on each": of_generate(lambda i: TOKENS),
    "generate, a count at admission": [
        (0, {"text": "", "meta_info": {"completion_tokens": 1}}),
        *of_generate(lambda i: i + 1),
    ],
    "generate, text without counts": [
        *((pause(i), {"text": "".join(WORDS[: i + 1])}) for i in range(39)),
        (GAP_S, generated(39, TOKENS)),
    ],
    "responses": of_responses(lambda _: "output_text"),
    "responses, arguments": of_responses(lambda _: "function_call_arguments"),
    "messages": of_messages(lambda i: {"type": "text_delta", "text": WORDS[i]}),
    "messages, arguments": of_messages(lambda i: {"type": "input_json_delta", "partial_json": WORDS[i]}),
}
# with the twenty-first,
HALF_WAY: dict[str, list[Timed]] = {
    "reasoning": half_thought(lambda w: {"reasoning": w}),
    "reasoning_content": half_thought(lambda w: {"reasoning_content": w}),
    "reasoning_text": half_thought(lambda w: {"reasoning_text": w}),
    "thinking": half_thought(lambda w: {"thinking": w}),
    "reasoning_details": half_thought(
        lambda w: {"reasoning_details": [{"type": "reasoning.text", "text": w}]}
    ),
    "thinking_blocks": half_thought(lambda w: {"thinking_blocks": [{"thinking": w}]}),
    "parts of thinking": half_thought(
        lambda w: {"content": [{"type": "thinking", "thinking": [{"text": w}]}]}
    ),
    "parts of reasoning": half_thought(
        lambda w: {"content": [{"type": "reasoning", "summary": [{"text": w}]}]}
    ),
    "a part that is thought": half_thought(lambda w: {"content": [{"text": w, "thought": True}]}),
    "completions, reasoning": streamed(
        text(i, **({"text": "", "reasoning": "x"} if i < 20 else {})) for i in range(TOKENS)
    ),
    "responses, reasoning": of_responses(lambda i: "reasoning_text" if i < 20 else "output_text"),
    "messages, thinking": of_messages(
        lambda i: {"type": "text_delta", "text": WORDS[i]} if i >= 20 else thought(i)
    ),
}
# and never.
NEVER: dict[str, list[Timed]] = {
    "reasoning alone": each(lambda i, w: {"reasoning": w}),
    "responses, summary of reasoning": of_responses(lambda _: "reasoning_summary_text"),
    "messages, thinking alone": of_messages(thought),
}
RIGHT = [
    (name, timed, seen_ms)
    for streams, seen_ms in ((AT_FIRST, TTFT_MS), (HALF_WAY, TTFT_MS + 20 * TPOT_MS), (NEVER, None))
    for name, timed in streams.items()
]

# Streams whose figures cannot be right, and the words in which the verdict says why.
SUSPECT: dict[str, tuple[list[Timed], str]] = {
    "whole": (together(100), "all chunks came at one instant"),
    "clumps of ten": (together(11), "at a time"),
    "clumps of five": (together(6), "at a time"),
    "a field that is not read": (each(lambda i, w: {"odd": w}), "are counted on one chunk"),
    "the whole answer in the last message": (
        each(lambda i, w: {}, last=says({"content": ALL}, "length")),
        "are counted on one chunk",
    ),
    "a blank message at admission, and a last token without text": (
        streamed([says({"content": w}) for w in WORDS[:39]], first=says({"content": ""})),
        "the first chunk that counts as a token has no text",
    ),
    "a blank that keeps the connection open": (
        [(0.01, says({"content": " "})), *content()[1:]],
        "before the others: it is not a token",
    ),
    "completions, the prompt before the answer": (
        [(0.01, {"choices": [{"text": "prompt"}]}), *streamed(map(text, range(TOKENS)))[1:]],
        "before the others: it is not a token",
    ),
    "all but the first held back": (
        [
            (FIRST_S, says({"content": WORDS[0]})),
            (39 * GAP_S, says({"content": WORDS[1]})),
            *[(-1, event) for _, event in content()[3:]],
        ],
        "the chunks after the first came 39 at a time",
    ),
    "each event twice": (
        [
            *[(wait, says({"content": w})) for i, w in enumerate(WORDS) for wait in (pause(i), -1)],
            *content()[-2:],
        ],
        "a proxy splits or repeats chunks",
    ),
    "a usage of one": (content(used=counts(1)), "more chunks have text"),
    "letters in messages of their own": (content(used=counts(10)), "more chunks have text"),
    "more tokens than were asked for": (
        content(used=counts(400)),
        "400.0 tokens per response, 40.0 requested",
    ),
    "a total beyond prompt and output": (
        content(used=counts(TOKENS, total_tokens=500)),
        "beyond prompt and output",
    ),
    "reasoning that is counted and not shown": (
        streamed(HIDDEN, used=TWENTY_HIDDEN),
        "are counted and not shown",
    ),
    "reasoning that is counted elsewhere": (
        streamed(HIDDEN, used=counts(TOKENS, reasoning_tokens=20)),
        "are counted and not shown",
    ),
    "a parser that drops the first half": (streamed(HIDDEN), "by their words the chunks carry one each"),
    "completions, a parser that drops every third token": (
        streamed(text(i) for i in range(TOKENS) if i % 3),
        "by their words the chunks carry one each",
    ),
    "a parser that lets the first half go at once": (
        streamed([says({"content": "".join(WORDS[:20])}), *HIDDEN]),
        "or came with the first chunk",
    ),
    "a first half at once, counted": (
        streamed(
            says({"content": w}, used=counts(20 + i))
            for i, w in enumerate(["".join(WORDS[:20]), *WORDS[20:]])
        ),
        "the first chunk carries 20 tokens",
    ),
    "encrypted reasoning": (
        half_thought(lambda w: {"reasoning_details": [{"data": "x"}]}, used=TWENTY_HIDDEN),
        "are counted and not shown",
    ),
}


def played(name: str, timed: list[Timed], transport: str) -> RunEvidence:
    """A run whose every answer is this stream; a wait of -1 puts an event into the write before it."""
    dialect = recorded.APIS.get(name.partition(",")[0], recorded.APIS["chat"])
    pieces: list[bytes | float] = [HEAD]
    for seconds, event in timed:
        data = chunk(b"data: %b\n\n" % json.dumps(event).encode())
        if seconds < 0:
            last = pieces.pop()
            assert isinstance(last, bytes)
            pieces.append(last + data)
            continue
        pieces += [seconds, data] if seconds else [data]
    with VirtualServer(lambda asked: Answer([*pieces, chunk(DONE), LAST])) as server:
        driven = drive(job_of(server.target(), REQUESTS, 1), transport, server)
    planned = np.full(REQUESTS, PROMPT), np.full(REQUESTS, TOKENS)
    decoder = Decoder(dialect, streamed=True, planned=planned)
    rows = [decoder.decode(capture) for capture in driven.captures]
    lengths = {"input_len": PROMPT, "output_len": TOKENS}
    workload = {**lengths, "num_prompts": REQUESTS, "max_concurrency": 1, "ignore_eos": False}
    more = {"window": None, "calibration": None, "ceiling": None}
    client = made_cases.client(transport=transport)
    return made_cases.run(rows, workload, requests=REQUESTS, client=client, **more)


@pytest.mark.parametrize("transport", EVERY_TRANSPORT)
@loop_over(("name", "timed", "seen_ms"), RIGHT)
def test_a_token_is_found_wherever_it_is_and_whatever_the_counts_are(
    name: str, timed: list[Timed], seen_ms: float | None, transport: str
) -> None:
    run = played(name, timed, transport)
    metrics = run.metrics
    assert (metrics.completed, metrics.total_output_tokens) == (REQUESTS, REQUESTS * TOKENS), metrics.failures
    assert metrics.ttft.median_ms == pytest.approx(TTFT_MS, abs=0.5)
    assert metrics.tpot.mean_ms == pytest.approx(TPOT_MS, abs=0.05)
    assert metrics.itl.median_ms == pytest.approx(TPOT_MS, abs=0.05)
    if seen_ms is None:
        assert (metrics.ttfvt.n, "reasoning-alone" in _codes(run)) == (0, True)
    else:
        assert metrics.ttfvt.median_ms == pytest.approx(seen_ms, abs=1.0)
    assert [finding.evidence for finding in verdict.judge(run).grave] == []


@pytest.mark.parametrize("transport", EVERY_TRANSPORT)
@loop_over("name", SUSPECT)
def test_what_cannot_be_right_is_suspect_with_its_cause(name: str, transport: str) -> None:
    timed, words = SUSPECT[name]
    run = played(name, timed, transport)
    assert run.metrics.completed == REQUESTS
    assert words in " ".join(finding.evidence for finding in verdict.judge(run).grave)
    assert not _codes(run) & {"reads-late", "messages-together"}


def several(sizes: Iterable[int]) -> list[Timed]:
    """Messages of several tokens, each of which took its time; the first token comes alone."""
    tokens, timed, at = iter(WORDS), list[Timed](), 0
    for size in sizes:
        seconds = FIRST_S if not at else GAP_S * size
        timed.append((seconds, says({"content": "".join(next(tokens) for _ in range(size))})))
        at += size
    assert at == TOKENS
    return [*timed, (0, says({}, "length")), (0, {"choices": [], "usage": counts(TOKENS)})]


def drafted(size: int) -> list[Timed]:
    """A first token, then each step's tokens in messages of their own, at once."""
    timed: list[Timed] = [(FIRST_S, says({"content": WORDS[0]}))]
    for i, word in enumerate(WORDS[1:]):
        timed += [(-1 if i % size else GAP_S, says({"content": word}))]
    return [*timed, (0, says({}, "length")), (0, {"choices": [], "usage": counts(TOKENS)})]


@loop_over_named(
    "timed",
    {
        "a stream interval of four": several([1, *[4] * 9, 3]),
        "drafts of two": several([1, *[2, 1] * 13]),
        "drafts of thirteen": several([1, *[13] * 3]),
        "drafts of four, a chunk each": drafted(4),
        "a token each 0.1 ms": [(s / 100, e) for s, e in content()],
    },
)
def test_a_healthy_server_of_several_tokens_a_message_is_not_doubted(
    timed: list[Timed], transport: str
) -> None:
    assert not {"arrivals-not-tokens", "tokens-not-located"} & _codes(played("chat", timed, transport))


UNSPACED = [chr(0x4E00 + i) for i in range(TOKENS)]
_NOT_LOCATED = "160 chunks, and nothing shows whether these carry several or some are not shown"


@loop_over_named(
    "timed",
    {
        "half is dropped": streamed([says({"content": w}) for w in UNSPACED[20:]]),
        "pairs": streamed(
            [says({"content": "".join(pair)}) for pair in zip(UNSPACED[::2], UNSPACED[1::2], strict=True)]
        ),
    },
)
def test_where_no_word_shows_what_messages_carry_a_note_says_so(timed: list[Timed], transport: str) -> None:
    found = verdict.judge(played("chat", timed, transport)).findings
    findings = {finding.rule.code: finding.evidence for finding in found}
    assert _NOT_LOCATED in findings["tokens-not-located"]
    assert "arrivals-not-tokens" not in findings


def _codes(run: RunEvidence) -> set[str]:
    return {finding.rule.code for finding in verdict.judge(run).findings}
