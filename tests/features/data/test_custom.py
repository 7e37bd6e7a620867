"""Custom: prompts of a JSONL file, in vLLM's order; whatever cannot be sent is named by file and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.drop_in import TOKENIZER, planned
from loadgen.base.errors import UsageError
from loadgen.features.data.listed_texts import FileTexts
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile

ROWS = ['{"prompt": "One", "output_tokens": 3}', '{"prompt": "Two two", "output_tokens": 4}']


def made(directory: Path, rows: list[str], tokenizer: str | None = None, **keys: Any) -> Plan:
    (directory / "p.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    keys = {"skip_chat_template": True, "disable_shuffle": True, "no_oversample": True, **keys}
    return planned(
        ["--dataset-name", "custom", "--dataset-path", str(directory / "p.jsonl")], tokenizer, **keys
    )


def test_template_keywords_go_into_the_template_applied_here(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for file in TOKENIZER.iterdir():
        text = file.read_text("utf-8")
        (tokenizer / file.name).write_text(text.replace("assistant\\n", "assistant{{ mood }}"), "utf-8")
    plan = made(
        tmp_path, ROWS, str(tokenizer), skip_chat_template=False, chat_template_kwargs={"mood": "calm"}
    )
    assert plan.payload(0)["prompt"].endswith("<|im_start|>assistantcalm")
    assert "chat_template_kwargs" not in plan.payload(0)


def test_a_template_that_fails_is_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for file in TOKENIZER.iterdir():
        text = file.read_text("utf-8").replace("{% for message in messages %}", "{{ raise_exception('no') }}")
        (tokenizer / file.name).write_text(text.replace("{% endfor %}", ""), "utf-8")
    with pytest.raises(
        UsageError, match=r"its chat template cannot be applied \(no\): pass --skip-chat-temp"
    ):
        made(tmp_path, ROWS, str(tokenizer), skip_chat_template=False)


def test_the_digest_is_of_every_prompt(tmp_path: Path) -> None:
    rows = [f'{{"prompt": "Number {i}"}}' for i in range(200)]
    plans = [made(tmp_path, rows), made(tmp_path, [*rows[:-1], '{"prompt": "Number 198!"}'])]
    assert plans[0].digest() != plans[1].digest()
    assert plans[0].digest() == made(tmp_path, rows).digest()


@pytest.mark.parametrize("count", [0, -1, None])
def test_no_count_of_prompts_is_every_row_as_in_vllm(tmp_path: Path, count: int | None) -> None:
    plan = made(tmp_path, ROWS, num_prompts=count, no_oversample=False)
    assert (len(plan), plan.profile.num_prompts) == (2, None)
    assert Profile.model_validate_json(plan.profile.model_dump_json()) == plan.profile


def test_of_other_data_sets_a_count_of_prompts_is_needed() -> None:
    with pytest.raises(UsageError, match=r"^--num-prompts 0: "):
        planned(["--dataset-name", "prefix_repetition"], None, num_prompts=0)


def test_a_shuffled_request_knows_its_row(tmp_path: Path) -> None:
    rows = ['{"prompt": "0"}', "", *(f'{{"prompt": "{number}"}}' for number in range(1, 9))]
    plan = made(tmp_path, rows, disable_shuffle=False, no_oversample=False, num_prompts=12)
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
        planned(command)
