"""Text prompts: the same texts as the clients they are named after send."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.plan.prompt_texts import TextPrompts, make_text_vllm, make_text_vllm_0_9, make_vllm_texts
from loadgen.plan.random_prompts import PromptShape
from loadgen.plan.tokenizers import Tokenizer, load_tokenizer

DATA = Path(__file__).parents[1] / "data"
PLAIN = DATA / "tokenizer"
GOLDEN: list[dict[str, Any]] = json.loads((DATA / "vllm_random_prompts.json").read_text("utf-8"))["cases"]


@pytest.fixture(autouse=True)
def _transformers() -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """The committed tokenizer, and the same one with a token put before every prompt (as Llama 3's does)."""
    with_bos = tmp_path_factory.mktemp("with_bos")
    for file in PLAIN.iterdir():
        (with_bos / file.name).write_bytes(file.read_bytes())
    document = json.loads((PLAIN / "tokenizer.json").read_text("utf-8"))
    name = "<|endoftext|>"
    single = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {name: {"id": name, "ids": [0], "tokens": [name]}},
    }
    (with_bos / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    return {
        "plain": load_tokenizer(str(PLAIN), "text-vllm"),
        "adds one token": load_tokenizer(str(with_bos), "text-vllm"),
    }


@pytest.mark.parametrize(
    "case", GOLDEN, ids=lambda c: f"{c['num_prompts']}x{c['input_len']}+{c['prefix_len']} {c['tokenizer']}"
)
def test_text_vllm_is_what_vllm_itself_made(case: dict[str, Any], tokenizers: dict[str, Tokenizer]) -> None:
    shape = PromptShape(
        case["num_prompts"],
        case["input_len"],
        case["output_len"],
        case["range_ratio_input"],
        case["range_ratio_output"],
        case["prefix_len"],
    )
    prompts = make_text_vllm(shape, tokenizers[case["tokenizer"]], case["seed"])
    texts = [prompts.prompt(i) for i in range(shape.num_prompts)]
    assert [text[:80] for text in texts[:2]] == case["first_80_characters"]
    assert [hashlib.blake2b(t.encode(), digest_size=8).hexdigest() for t in texts] == case["blake2b_8"]
    assert prompts.input_lens.tolist() == case["input_lens"]
    assert prompts.output_lens.tolist() == case["output_lens"]


class Letters:
    """A tokenizer whose id is a character; `ab` merges into one id, so texts can come back shorter."""

    vocab_size = 151643

    def __init__(self, merged: tuple[int, int] | None = None, added: int = 0) -> None:
        self.merged, self.added = merged, added
        self.all_special_ids: list[int] = []
        self.decoded: list[list[int]] = []

    def num_special_tokens_to_add(self) -> int:
        return self.added

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert add_special_tokens is False
        ids: list[int] = []
        for token in map(int, text.split()):
            if self.merged and ids and (ids[-1], token) == self.merged:
                ids[-1] = 0
            else:
                ids.append(token)
        return ids

    def decode(self, token_ids: Any) -> str:
        self.decoded.append(list(token_ids))
        return " ".join(map(str, token_ids))


def test_text_vllm_0_9_draws_the_offsets_of_the_published_runs() -> None:
    tokenizer = Letters()
    prompts = make_text_vllm_0_9(PromptShape(6, 2048, 128), tokenizer, 0)
    starts = [int(prompts.prompt(i).split()[0]) - i for i in range(6)]
    assert starts == [43567, 117952, 95939, 97639, 41993, 122579]
    assert prompts.input_lens.tolist() == [2048] * 6
    assert prompts.output_lens.tolist() == [128] * 6


@loop_over(
    ("prompts", "compat", "low", "high"),
    [
        (make_text_vllm, "vllm", 8, 18),
        (make_text_vllm, "vllm-0.9", 8, 17),
        (make_text_vllm, "sglang", 4, 13),
        (make_text_vllm, "inferencex", 4, 13),
        (make_text_vllm_0_9, "vllm", 8, 17),  # that version's
        (make_text_vllm_0_9, "vllm-0.9", 8, 17),
        (make_text_vllm_0_9, "sglang", 4, 13),
    ],
)
def test_texts_have_the_lengths_of_the_range_rule(
    prompts: Callable[..., TextPrompts], compat: str, low: int, high: int
) -> None:
    made = prompts(PromptShape(2000, 13, 13, 0.31, 0.31, compat=compat), Letters(), 0)
    for lens in (made.input_lens, made.output_lens):
        assert (int(lens.min()), int(lens.max())) == (low, high)


def test_text_vllm_0_9_cuts_what_is_long_and_leaves_short_what_is_short() -> None:
    offset = 43567
    short = make_text_vllm_0_9(PromptShape(6, 8, 1), Letters(merged=(offset + 3, offset + 4)), 0)
    assert short.input_lens.tolist() == [7, 8, 8, 8, 8, 8]


class Doubling(Letters):
    """Every text comes back longer than it was cut to: no loop can settle it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*map(int, text.split()), 1, 1]


def test_text_vllm_gives_up_after_ten_rounds_and_counts_what_it_has() -> None:
    tokenizer = Doubling()
    prompts = make_text_vllm(PromptShape(1, 8, 1), tokenizer, 0)
    assert len(tokenizer.decoded) == 11
    assert prompts.input_lens.tolist() == [10]
    assert len(prompts.prompt(0).split()) == 8


@pytest.mark.parametrize("prompts", [make_text_vllm, make_text_vllm_0_9])
def test_tokens_that_the_tokenizer_adds_are_part_of_the_input_length(
    prompts: Callable[..., TextPrompts],
) -> None:
    assert prompts(PromptShape(2, 20, 1), Letters(added=1), 0).input_lens.tolist() == [19, 19]
    with pytest.raises(UsageError, match="no prompt is left"):
        prompts(PromptShape(2, 1, 1), Letters(added=1), 0)


def test_text_vllm_leaves_special_ids_out() -> None:
    tokenizer = Letters()
    offset = int(make_text_vllm(PromptShape(1, 4, 1), tokenizer, 0).prompt(0).split()[0])
    tokenizer.all_special_ids = [offset + 1, 151644]
    assert make_text_vllm(PromptShape(1, 4, 1), tokenizer, 0).prompt(0).split() == [
        str(offset + i) for i in (0, 2, 3, 4)
    ]


@pytest.mark.parametrize(
    ("prompts", "seed"), [(make_text_vllm, -1), (make_text_vllm_0_9, -1), (make_text_vllm_0_9, 2**32)]
)
def test_a_seed_that_the_generator_does_not_take_is_refused(
    prompts: Callable[..., TextPrompts], seed: int
) -> None:
    with pytest.raises(UsageError, match=f"^--seed {seed}: "):
        prompts(PromptShape(1, 4, 1), Letters(), seed)


@pytest.mark.parametrize("prompt_format", ["text-vllm", "text-vllm-0.9"])
def test_both_loops_run_on_a_real_tokenizer(prompt_format: str, tokenizers: dict[str, Tokenizer]) -> None:
    shape = PromptShape(200, 20, 8)
    prompts = make_vllm_texts(prompt_format, shape, str(PLAIN), 0)
    assert prompts.format == prompt_format
    again = make_vllm_texts(prompt_format, shape, str(PLAIN), 0)
    assert again.digest() == prompts.digest()
    assert make_vllm_texts(prompt_format, shape, str(PLAIN), 1).digest() != prompts.digest()
    lens = prompts.input_lens
    if prompt_format == "text-vllm":
        encode = tokenizers["plain"].encode
        texts = [str(prompts.prompt(i)) for i in range(shape.num_prompts)]
        assert [len(encode(text, add_special_tokens=False)) for text in texts] == lens.tolist()
        # So small a vocabulary leaves some that ten rounds do not settle: stray bytes decode to U+FFFD,
        # which is three tokens. Never one that is short, though.
        assert int((lens == 20).sum()) > 170
        assert int(lens.min()) == 20
    else:
        assert 0 < int((lens < 20).sum()) < 20  # cut, never filled
        assert int(lens.max()) == 20


@pytest.mark.parametrize(("prompt_format", "total"), [("text-vllm", 204800), ("text-vllm-0.9", 204169)])
def test_totals_of_the_published_shape_with_the_real_tokenizer(prompt_format: str, total: int) -> None:
    name = os.environ.get("QWEN_TOKENIZER")
    if not name:
        pytest.skip("QWEN_TOKENIZER does not name a Qwen tokenizer's directory")
    prompts = make_vllm_texts(prompt_format, PromptShape(100, 2048, 128), name, 0)
    assert int(prompts.input_lens.sum()) == total


def test_no_tokenizer_named_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--prompt-format text-vllm needs --tokenizer"):
        load_tokenizer(None, "text-vllm")


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError) as raised:
        load_tokenizer(str(PLAIN), "text-vllm-0.9")
    assert str(raised.value) == (
        "texts (text-vllm-0.9) need transformers: in the clone, .venv/bin/pip install '.[tokenizer]'"
    )


@pytest.mark.parametrize(
    "files", [{}, {"tokenizer.json": "{"}, {"tokenizer.json": '{"added_tokens": [], "model": 1}'}]
)
def test_a_directory_that_holds_no_tokenizer_is_refused_in_one_line(
    files: dict[str, str], tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(UsageError, match=r"^--tokenizer ") as raised:
        load_tokenizer(str(tmp_path), "text-vllm")
    assert "\n" not in str(raised.value)


def test_a_path_that_does_not_exist_is_not_taken_for_a_name_on_a_hub(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no such directory$"):
        load_tokenizer(str(tmp_path / "nothing"), "text-vllm")


@pytest.mark.whole
def test_loading_is_silent_and_transformers_is_imported_late() -> None:
    script = (
        "import sys, loadgen.plan.prompt_texts as t\n"
        "assert 'transformers' not in sys.modules\n"
        f"t.load_tokenizer({str(PLAIN)!r}, 'text-vllm').encode('a b ' * 100_000, add_special_tokens=False)\n"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
