"""Kinds of rows: which one a file has, and what ShareGPT, custom rows and whole bodies are sent as."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders import drop_in
from builders.data_files import jsonl, planned
from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import OpenedFile
from loadgen.features.data import bodies, sharegpt
from loadgen.features.data.listed_texts import FileTexts
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile

MESSAGES = [{"role": "user", "content": "a"}]


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("jq") is None, reason="the command that is given needs jq")
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "timestamp": 1},
        {"prompt": "a", "timestamp": "2026-01-01T00:00:00Z", "session_id": "s", "output_length": 4},
        {"messages": MESSAGES, "delay": 2},
    ],
)
def test_the_command_that_a_line_gives_makes_a_file_that_is_sent(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = jsonl(tmp_path, [row, row])
    with pytest.raises(UsageError) as raised:
        planned(file)
    command = str(raised.value).partition("sessions: ")[2].partition(", then --dataset-path rows.jsonl")[0]
    subprocess.run(["bash", "-c", command], check=True, timeout=20)
    keys = {"custom_output_len": 4} if "prompt" in row else {"backend": "openai-chat"}
    assert len(planned(str(tmp_path / "rows.jsonl"), **keys)) == 2


def test_a_late_row_with_a_key_of_a_trace_is_refused_by_its_number(tmp_path: Path) -> None:
    rows = [{"messages": MESSAGES}] * 1500 + [{"messages": MESSAGES, "delay": 1}]
    with pytest.raises(UsageError, match=r"row 1501: `delay` makes"):
        planned(jsonl(tmp_path, rows))


def test_a_wrong_first_row_is_refused_before_the_others_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jsonl(tmp_path, [b"1"] * 3_000_000)
    read, whole = [0], OpenedFile.read

    def count(file: OpenedFile, begin: int, size: int) -> bytes:
        raw = whole(file, begin, size)
        read[0] += len(raw)
        return raw

    monkeypatch.setattr(OpenedFile, "read", count)
    with pytest.raises(UsageError, match="row 1: "):
        planned(path)
    assert read[0] < 4_000_000


GOOD = {"conversations": [{"value": "A question of some words"}, {"value": "An answer of some words"}]}


def made_sharegpt(file: Path, tokenizer: str | None = str(drop_in.TOKENIZER), **keys: Any) -> Plan:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    return drop_in.planned(["--dataset-name", "sharegpt", "--dataset-path", str(file)], tokenizer, **keys)


def test_a_batch_more_of_rows_is_counted_as_one() -> None:
    """Rows are counted in batches, which nothing of the result shows."""
    whole = made_sharegpt(drop_in.DIRECTORY / "sharegpt.json", num_prompts=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharegpt, "_BATCH", 4)
        assert made_sharegpt(drop_in.DIRECTORY / "sharegpt.json", num_prompts=60).digest() == whole.digest()


def test_without_a_tokenizer_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--dataset-name sharegpt counts and filters .* pass --tokenizer"):
        made_sharegpt(drop_in.DIRECTORY / "sharegpt.json", tokenizer=None)


@loop_over(
    ("entries", "message"),
    [
        ({"a": 1}, 'is not a JSON array of conversations: is {"a": 1}: give a list'),
        ([GOOD, 5], "is not a JSON array of conversations: [1] is 5: give an object"),
        ([GOOD, {"conversations": [{"text": "x"}, {"value": "y"}]}],
         "row 2: a turn is no object with a text"),
        ([{"conversations": [{"value": "x"}, {"value": None}]}], "row 1: a turn is no object with a text"),
        ([GOOD | {"image": "a.png"}], "row 1 has an image: only text is read from ShareGPT"),
        ([{"conversations": []}], "no row is left to send: 1 with fewer than 2 turns"),
        ([], "no row is left to send: it holds none"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_sharegpt_is_named_with_its_row(
    tmp_path: Path, entries: object, message: str
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(entries), "utf-8")
    with pytest.raises(UsageError) as raised:
        made_sharegpt(file)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"--dataset-path {file}")


def test_a_file_that_cannot_be_read_whole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharegpt, "_MOST_BYTES", 10)
    with pytest.raises(UsageError, match=r"write it as JSONL"):
        made_sharegpt(drop_in.DIRECTORY / "sharegpt.json")


ROWS = ['{"prompt": "One", "output_tokens": 3}', '{"prompt": "Two two", "output_tokens": 4}']


def made_custom(directory: Path, rows: list[str], tokenizer: str | None = None, **keys: Any) -> Plan:
    (directory / "p.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    keys = {"skip_chat_template": True, "disable_shuffle": True, "no_oversample": True, **keys}
    return drop_in.planned(
        ["--dataset-name", "custom", "--dataset-path", str(directory / "p.jsonl")], tokenizer, **keys
    )


def test_template_keywords_go_into_the_template_applied_here(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for file in drop_in.TOKENIZER.iterdir():
        text = file.read_text("utf-8")
        (tokenizer / file.name).write_text(text.replace("assistant\\n", "assistant{{ mood }}"), "utf-8")
    plan = made_custom(
        tmp_path, ROWS, str(tokenizer), skip_chat_template=False, chat_template_kwargs={"mood": "calm"}
    )
    assert plan.payload(0)["prompt"].endswith("<|im_start|>assistantcalm")
    assert "chat_template_kwargs" not in plan.payload(0)


def test_a_template_that_fails_is_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for file in drop_in.TOKENIZER.iterdir():
        text = file.read_text("utf-8").replace("{% for message in messages %}", "{{ raise_exception('no') }}")
        (tokenizer / file.name).write_text(text.replace("{% endfor %}", ""), "utf-8")
    with pytest.raises(
        UsageError, match=r"its chat template cannot be applied \(no\): pass --skip-chat-temp"
    ):
        made_custom(tmp_path, ROWS, str(tokenizer), skip_chat_template=False)


def test_the_digest_is_of_every_prompt(tmp_path: Path) -> None:
    rows = [f'{{"prompt": "Number {i}"}}' for i in range(200)]
    plans = [made_custom(tmp_path, rows), made_custom(tmp_path, [*rows[:-1], '{"prompt": "Number 198!"}'])]
    assert plans[0].digest() != plans[1].digest()
    assert plans[0].digest() == made_custom(tmp_path, rows).digest()


@pytest.mark.parametrize("count", [0, -1, None])
def test_no_count_of_prompts_is_every_row_as_in_vllm(tmp_path: Path, count: int | None) -> None:
    plan = made_custom(tmp_path, ROWS, num_prompts=count, no_oversample=False)
    assert (len(plan), plan.profile.num_prompts) == (2, None)
    assert Profile.model_validate_json(plan.profile.model_dump_json()) == plan.profile


def test_of_other_data_sets_a_count_of_prompts_is_needed() -> None:
    with pytest.raises(UsageError, match=r"^--num-prompts 0: "):
        drop_in.planned(["--dataset-name", "prefix_repetition"], None, num_prompts=0)


def test_a_shuffled_request_knows_its_row(tmp_path: Path) -> None:
    rows = ['{"prompt": "0"}', "", *(f'{{"prompt": "{number}"}}' for number in range(1, 9))]
    plan = made_custom(tmp_path, rows, disable_shuffle=False, no_oversample=False, num_prompts=12)
    assert isinstance(plan.requests, FileTexts)
    prompts = [int(plan.payload(i)["prompt"]) for i in range(12)]
    assert prompts != sorted(prompts)
    lines = [prompt + 1 + (prompt > 0) for prompt in prompts]  # one is blank
    assert [plan.requests.name_row(i) for i in range(12)] == [
        f"{tmp_path}/p.jsonl row {line}" for line in lines
    ]


def test_a_seed_that_numpy_does_not_take_is_refused() -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    command = ["--dataset-name", "prefix_repetition", "--num-prompts", "14", "--seed", "4294967296"]
    with pytest.raises(UsageError, match=r"^--seed 4294967296: prefix_repetition takes 0 to 4294967295"):
        drop_in.planned(command)


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
