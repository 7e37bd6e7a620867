from __future__ import annotations

import json
from typing import Any

import msgspec

from builders.loops import loop_over
from loadgen.records.decoded_stream import count_prompt, count_tokens, find_fault, spread_tokens, summarize
from loadgen.wire.openai import Chat, Completions

SAID, EMPTY = {"text": "a"}, {"text": ""}
LAST, CLOSED = {"text": "b", "finish_reason": "length"}, {"text": "", "finish_reason": "length"}


def message(choice: dict[str, Any], used: int | None = None, **more: Any) -> dict[str, Any]:
    usage = None if used is None else {"prompt_tokens": 5, "completion_tokens": used}
    return {"choices": [choice | more], "usage": usage}


def usage(used: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": used}}


# (messages, {message: its tokens}, total, whether the total is the server's, whether each is known)
CASES: dict[str, tuple[list[dict[str, Any]], dict[int, int], int, bool, bool]] = {
    "one token a message": (
        [message(SAID), message(LAST), usage(2)],
        {0: 1, 1: 1},
        2,
        True,
        True,
    ),
    "an empty text is a token where the usage has it": (
        [message(EMPTY), message(SAID), message(LAST), usage(3)],
        {0: 1, 1: 1, 2: 1},
        3,
        True,
        True,
    ),
    "an empty text is none where the usage has it not": (
        [message(EMPTY), message(SAID), message(LAST), usage(2)],
        {1: 1, 2: 1},
        2,
        True,
        True,
    ),
    "an empty end is a token where the usage has it": (
        [message(SAID), message(EMPTY), message(CLOSED), usage(3)],
        {0: 1, 1: 1, 2: 1},
        3,
        True,
        True,
    ),
    "an empty end that brings the usage closes the stream": (
        [message(SAID), message(SAID), message(CLOSED, used=3)],
        {0: 1, 1: 2},
        3,
        True,
        False,
    ),
    "an eos at once": ([message(CLOSED), usage(1)], {0: 1}, 1, True, True),
    "an eos at once, closing": ([message(CLOSED, used=1)], {0: 1}, 1, True, True),
    "several tokens a message": (
        [message(SAID), message(SAID), message(LAST), usage(10)],
        {0: 3, 1: 3, 2: 4},
        10,
        True,
        False,
    ),
    "all tokens in one message": ([message(LAST), usage(10)], {0: 10}, 10, True, True),
    "fewer tokens than messages with text": (
        [message(SAID), message(SAID), message(LAST), usage(2)],
        {0: 1, 1: 1, 2: 0},
        2,
        True,
        False,
    ),
    "fewer tokens than messages, some empty": (
        [message(EMPTY), message(EMPTY), message(SAID), message(LAST), usage(3)],
        {2: 1, 3: 2},
        3,
        True,
        False,
    ),
    "fewer tokens than messages, all empty": (
        [message(EMPTY), message(EMPTY), message(CLOSED), usage(1)],
        {2: 1},
        1,
        True,
        False,
    ),
    "no usage": ([message(SAID), message(EMPTY), message(CLOSED)], {0: 1, 1: 1}, 2, False, False),
    "a usage of zero beside text": ([message(SAID), message(LAST), usage(0)], {0: 1, 1: 1}, 2, False, False),
    "a usage of zero": ([message(CLOSED), usage(0)], {}, 0, True, True),
    "only a usage": ([usage(3)], {}, 3, True, False),
    "token ids": (
        [
            message(SAID, token_ids=[7]),
            message(EMPTY, token_ids=[7, 8]),
            message(CLOSED, token_ids=[]),
            usage(3),
        ],
        {0: 1, 1: 2},
        3,
        True,
        True,
    ),
    "token ids, cut": (
        [message(SAID, token_ids=[7]), message(SAID, token_ids=[7, 8])],
        {0: 1, 1: 2},
        3,
        False,
        True,
    ),
    "token ids that do not add up": (
        [message(SAID, token_ids=[7]), message(LAST), usage(2)],
        {0: 1, 1: 1},
        2,
        True,
        True,
    ),
    "running usage": (
        [message(SAID, used=1), message(SAID, used=5), message(LAST, used=7), usage(7)],
        {0: 1, 1: 4, 2: 2},
        7,
        True,
        True,
    ),
    "running usage, cut": ([message(SAID, used=1), message(SAID, used=5)], {0: 1, 1: 4}, 5, True, True),
    "running usage of two choices": (
        [message(SAID, used=1), message(SAID, used=2, index=1), message(LAST, used=3), usage(5)],
        {0: 1, 1: 2, 2: 2},
        5,
        True,
        True,
    ),
    "running usage of two choices, cut": (
        [message(SAID, used=1), message(SAID, used=2, index=1), message(SAID, used=3)],
        {0: 1, 1: 2, 2: 2},
        5,
        True,
        True,
    ),
    "running usage that stays at zero": (
        [message(SAID, used=0), message(SAID, used=0), message(LAST), usage(6)],
        {0: 2, 1: 2, 2: 2},
        6,
        True,
        False,
    ),
    "two choices in a message": (
        [{"choices": [SAID, EMPTY | {"index": 1}]}, {"choices": [CLOSED, LAST | {"index": 1}]}, usage(4)],
        {0: 2, 1: 2},
        4,
        True,
        False,
    ),
    "what follows an error": ([message(SAID), {"error": "no"}, message(SAID)], {0: 1}, 1, False, False),
}


@loop_over("name", CASES)
def test_tokens_are_laid_to_the_messages_that_carried_them(name: str) -> None:
    sent, tokens, total, has_usage, exact = CASES[name]
    messages = Completions().read_messages(b"\n".join(map(msgspec.json.encode, sent)))
    counted = count_tokens(messages, summarize(messages))
    assert dict(zip(counted.messages.tolist(), counted.tokens.tolist(), strict=True)) == tokens
    assert (counted.total, counted.usage, counted.exact) == (total, has_usage, exact)


@loop_over(
    ("total", "messages", "tokens"),
    [
        (12, 11, [1] * 10 + [2]),
        (10, 4, [2, 3, 2, 3]),
        (4, 4, [1] * 4),
        (2, 3, [1, 1, 0]),
        (0, 2, [0, 0]),
        (5, 0, []),
    ],
)
def test_tokens_are_spread_evenly(total: int, messages: int, tokens: list[int]) -> None:
    assert spread_tokens(total, messages).tolist() == tokens


@loop_over("indent", [None, 1])
def test_a_prompts_count_is_read_of_an_event_over_several_lines(indent: int | None) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}
    lines = json.dumps(usage, indent=indent).split("\n")
    body = "".join(f"data: {line}\n" for line in lines) + "\ndata: [DONE]\n\n"
    assert count_prompt(Chat(), body.encode()) == 7


def test_a_token_over_several_lines_is_one() -> None:
    text = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    event = "".join(f"data: {line}\n" for line in json.dumps(text, indent=1).split("\n")) + "\n"
    assert Chat().has_token(event.encode())
    assert Chat().count_token_messages(event.encode() * 3) == 3
    pair = f"data: {json.dumps(text)}\n" * 2
    assert Chat().count_token_messages(f"{pair}\n".encode()) == 2


@loop_over(
    ("body", "fault"),
    [
        (b'{"error": {"message": "pull it first", "code": 404}}', "pull it first"),
        (b'data: {"error": {"message": "pull it first"}}\n\ndata: [DONE]\n\n', "pull it first"),
        (b'event: error\ndata: {"message": "pull it first"}\n\n', "pull it first"),
        (b'{"object": "error", "message": "pull it first", "code": 400}', "pull it first"),
        (b'{"detail": "pull it first"}', "pull it first"),
        (b'{"choices": [{"index": 0, "message": {"content": "a"}}], "message": "no"}', ""),
        (b"text", ""),
    ],
)
def test_an_error_with_status_200_is_found(body: bytes, fault: str) -> None:
    found = find_fault(Chat(), body)
    assert (fault in found, bool(found)) == (True, bool(fault))
