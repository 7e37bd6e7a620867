from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.wire.openai import (
    CLOSING,
    DIALECTS,
    ENDING,
    MAYBE,
    NOTHING,
    TOKEN,
    Chat,
    read_remark,
)

TABLES = read_tables("openai")

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def test_the_chat_api_takes_no_token_ids() -> None:
    with pytest.raises(UsageError, match="takes text, not token ids"):
        Chat().make_request("m", [1, 2], 9)


CARRIED = {"token": TOKEN, "nothing": NOTHING, "maybe": MAYBE, "ending": ENDING, "closing": CLOSING}


@loop_over(("choice", "carries"), TABLES["chat"])
def test_what_a_chat_message_carries(choice: dict[str, Any], carries: str) -> None:
    (message,) = Chat().read_messages(msgspec.json.encode({"choices": [choice]}))
    assert [choice.classify() for choice in message.choices or ()] == [CARRIED[carries]]


@loop_over(("message", "fault"), TABLES["errors"])
def test_an_error_in_a_message_is_told_with_its_code(message: dict[str, Any], fault: str | None) -> None:
    for dialect in recorded.APIS.values():
        assert dialect.read_messages(msgspec.json.encode(message))[0].read_fault() == fault


@loop_over(("message", "fault"), TABLES["remarks"])
def test_what_says_nothing_else_may_say_what_went_wrong(message: Any, fault: str | None) -> None:
    assert read_remark(msgspec.json.encode(message)) == fault


def event(message: dict[str, Any]) -> bytes:
    return recorded.chunk(b"data: %b\n\n" % msgspec.json.encode(message))


PING = recorded.chunk(b": ping - 2026-11-20 20:30:47\n\n")
DONE = recorded.chunk(b"data: [DONE]\n\n")
ROLE = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
SAID = event({"choices": [{"delta": {"content": "data: {}"}}]})
EMPTY = event({"choices": [{"delta": {"content": ""}}]})
COUNTED = event({"choices": [], "usage": USAGE})
ODD = event({"choices": 7})
SPLIT = SAID[4:40] + b"\r\n1f\r\n" + SAID[40:]


@loop_over(
    ("tail", "seen"),
    [
        (b"", False),
        (b"zz\xff\xff", False),
        (PING * 3, False),
        (PING + ROLE + COUNTED + DONE, False),
        (ODD + PING, False),
        (SAID, True),
        (EMPTY, True),
        (SAID + PING * 50, True),
        (ROLE + SAID + COUNTED + DONE + b"0\r\n\r\n", True),
        (ROLE[90:] + SAID + COUNTED[:30], True),
        (SPLIT, True),
        (SAID.replace(b"\n\n", b"\r\n\r\n"), True),
        (SAID.replace(b'data: {"c', b'data:{"c'), True),
        (SAID[:40], False),
        (SAID[12:], False),
    ],
)
def test_a_token_is_seen_in_a_piece_of_a_response(tail: bytes, seen: bool) -> None:
    assert DIALECTS["chat"].has_token(tail) is seen


def test_a_tail_is_looked_through_in_a_time_that_grows_with_its_length() -> None:
    begin_s = time.process_time()
    assert not DIALECTS["chat"].has_token(b"data:" * 2_000_000 + b"data:[[\n" * 20_000)
    assert time.process_time() - begin_s < 1
