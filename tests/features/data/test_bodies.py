"""Bodies: whole requests keep their keys, their order and the bytes of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from builders.data_files import jsonl, planned
from builders.loops import loop_over, read_tables
from loadgen.features.data import bodies

TABLES = read_tables("bodies")

USER = {"role": "user", "content": "a"}
CHAT: dict[str, Any] = {"messages": [USER]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CHAT_API = {"backend": "openai-chat"}
LAID_OVER = b'"stream":true,"stream_options":{"include_usage":true}'


@loop_over(
    ("row", "keys", "sent"),
    [
        (
            b'{"messages": [{"role":"u",  "content":"\\u00e9 \xc3\xa9"}], "temperature": 0.10, "model": "l"}',
            CHAT_API,
            b'{"messages":[{"role":"u",  "content":"\\u00e9 \xc3\xa9"}],"temperature":0.10,"model":"l",'
            + LAID_OVER
            + b"}",
        ),
        (b'{"stream": false, "messages": [{"role": "user"}], "max_tokens": 5}', CHAT_API,
         b'{"stream":true,"messages":[{"role": "user"}],"max_tokens":5,"model":"served",'
         b'"stream_options":{"include_usage":true}}'),
        (b'{"messages": [{"role": "user"}], "stream_options": {"a": 1.0, "include_usage": false}}', CHAT_API,
         b'{"messages":[{"role": "user"}],"stream_options":{"a":1.0,"include_usage":true},'
         b'"model":"served","stream":true}'),
        (b'{"messages": [{"role": "user"}], "model": "m", "temperature": 1e0, "max_tokens": 3}',
         {**CHAT_API, "temperature": 0.5, "custom_output_len": 9},
         b'{"messages":[{"role": "user"}],"model":"m","temperature":0.5,"max_tokens":9,' + LAID_OVER + b"}"),
        (
            b'{"messages": [{"role": "user"}], "model": "m", "chat_template_kwargs": {"x": 1e400, "y": 1}}',
            {**CHAT_API, "chat_template_kwargs": {"y": 2}},
            b'{"messages":[{"role": "user"}],"model":"m","chat_template_kwargs":{"x":1e400,"y":2},'
            + LAID_OVER
            + b"}",
        ),
        (b'{"prompt": [1, 2],"model": "m"}', {"custom_output_len": 9},
         b'{"prompt":[1, 2],"model":"m","max_tokens":9,' + LAID_OVER + b"}"),
    ],
)  # fmt: skip
def test_a_body_is_sent_as_it_stands(tmp_path: Path, row: bytes, keys: dict[str, Any], sent: bytes) -> None:
    body = planned(jsonl(tmp_path, [row]), **keys).body(0)
    assert body == sent


@loop_over(("row", "names"), TABLES["asked"])
def test_what_a_body_asks_of_a_server_is_named(row: dict[str, Any], names: list[str]) -> None:
    raw = msgspec.json.decode(msgspec.json.encode(row), type=dict[str, msgspec.Raw])
    assert list(bodies.find_features(raw)) == names
