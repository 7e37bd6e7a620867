"""Vocabulary: never a special id, never one beyond the model's vocabulary, and where it came from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.base.errors import UsageError
from loadgen.plan.model_files import Vocabulary, find_vocabulary, locate_tokenizer, read_vocabulary

TABLES = read_tables("model_files")

DEFAULT = list(range(1000, 5000))


def write(directory: Path, **files: Any) -> Path:
    """`tokenizer_config={…}` becomes tokenizer_config.json; a string is written as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / f"{name}.json").write_text(text, "utf-8")
    return directory


def bpe(size: int, *added: tuple[int, bool], **texts: int) -> dict[str, Any]:
    """A tokenizer.json with ids 0 … size − 1, some of which have the names given in `texts`."""
    names = {i: f"t{i}" for i in range(size)} | {i: text for text, i in texts.items()}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": f"<{i}>", "special": special} for i, special in added],
        "model": {"type": "BPE", "vocab": {text: i for i, text in names.items()}, "merges": [["t", "1"]]},
    }


def without(size: int, *left_out: int) -> list[int]:
    return [i for i in range(size) if i not in left_out]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache of the test's own."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


@loop_over_named(
    ("files", "expected"),
    {
        "added after the base": ({"tokenizer": bpe(50, (50, True), (51, False))}, without(50)),
        "added inside it": ({"tokenizer": bpe(50, (0, True), (7, False))}, without(50, 0, 7)),
        "model is smaller": ({"tokenizer": bpe(50), "config": {"vocab_size": 40}}, without(40)),
        "model is padded": ({"tokenizer": bpe(50), "config": {"vocab_size": 64}}, without(50)),
        "nested text_config": (
            {"tokenizer": bpe(50), "config": {"text_config": {"vocab_size": 40, "pad_token_id": 3}}},
            without(40, 3),
        ),
        "ids in config.json": (
            {
                "tokenizer": bpe(50),
                "config": {"eos_token_id": [1, 2], "bos_token_id": None, "image_token_id": 9},
            },
            without(50, 1, 2, 9),
        ),
        "ids in generation_config.json": (
            {"tokenizer": bpe(50), "generation_config": {"eos_token_id": 4, "pad_token_id": 5}},
            without(50, 4, 5),
        ),
        "added_tokens_decoder": (
            {"tokenizer": bpe(50), "tokenizer_config": {"added_tokens_decoder": {"6": {"content": "x"}}}},
            without(50, 6),
        ),
        "special by its text": (
            {
                "tokenizer": bpe(50, eos=1, pad=2, one=3, two=4),
                "tokenizer_config": {
                    "eos_token": "eos",
                    "pad_token": {"content": "pad", "lstrip": False},
                    "bos_token": None,
                    "add_bos_token": False,
                    "extra_special_tokens": {"image_token": "one"},
                },
                "special_tokens_map": {"additional_special_tokens": ["two", "elsewhere"]},
            },
            without(50, 1, 2, 3, 4),
        ),
        "unigram": (
            {"tokenizer": {"model": {"type": "Unigram", "vocab": [["a", 0], ["b", -1.5], ["c", -2.0]]}}},
            [0, 1, 2],
        ),
        "ids with gaps": ({"tokenizer": {"model": {"vocab": {"a": 0, "b": 5, "c": 9}}}}, [0, 5, 9]),
        "vocab.json and merges.txt only": (
            {
                "vocab": {"a": 0, "b": 1, "e": 2},
                "added_tokens": {"<x>": 3},
                "tokenizer_config": {"eos_token": "e"},
            },
            [0, 1],
        ),
        "tokenizer.json before vocab.json": (
            {"tokenizer": bpe(9), "vocab": {"a": 0}, "config": {"vocab_size": 20}},
            without(9),
        ),
        "config.json alone, small": ({"config": {"vocab_size": 40}}, without(40)),
        "config.json alone, special ids at the end": (
            {"config": {"vocab_size": 151936, "bos_token_id": 151643, "eos_token_id": 151645}},
            list(range(1000, 151643)),
        ),
        "config.json alone, special ids at the start": (
            {"config": {"vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": -1}},
            list(range(1000, 32000)),
        ),
        "config.json alone, special id in the middle": (
            {"config": {"vocab_size": 32000, "text_config": {"eos_token_id": 9000}}},
            [i for i in range(1000, 32000) if i != 9000],
        ),
    },
)
def test_what_a_directory_allows(files: dict[str, Any], expected: list[int], tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path / "model", **files))
    assert vocabulary.allowed.tolist() == expected
    assert str(tmp_path / "model") in vocabulary.source


def test_with_an_opaque_tokenizer_config_or_flag_gives_the_size(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", generation_config={"eos_token_id": 2})
    (directory / "tokenizer.model").write_bytes(b"\x0a")
    with pytest.raises(
        UsageError, match=r"tokenizer\.model: read only by its own library.*give --vocab-size"
    ):
        find_vocabulary(str(directory), None, None)
    assert find_vocabulary(str(directory), None, 10).allowed.tolist() == without(10, 2)
    write(directory, config={"vocab_size": 8})
    assert find_vocabulary(str(directory), None, 10).allowed.tolist() == without(8, 2)


NOT_HERE = "--tokenizer org/name not found here: neither a directory nor in the local Hugging Face cache"
T30, M20, SMALLER = (
    "t30/tokenizer.json",
    "vocab_size 20 of m20/config.json",
    "below the model's vocab_size 20",
)


@loop_over(
    ("tokenizer", "model", "vocab_size", "expected", "source"),
    [
        (None, None, None, DEFAULT, "default ids 1000-4999"),
        (None, None, 3, [0, 1, 2], "--vocab-size 3"),
        (None, None, 200_000, list(range(200_000)), "--vocab-size 200000"),
        ("t30", None, None, without(30), T30),
        (None, "m20", None, without(20), M20),
        ("t30", "m20", None, without(20), f"{T30}, {SMALLER}"),  # another model's: the smaller holds
        ("t30", "m40", None, without(30), T30),
        ("t30", None, 10, without(10), f"{T30}, below --vocab-size 10"),
        ("t30", None, 100, without(30), T30),
        (None, "m20", 10, without(10), f"{M20}, below --vocab-size 10"),
        ("t30", "m20", 25, without(20), f"{T30}, {SMALLER}"),
        ("t30", "nothing here", None, without(30), T30),
        ("org/name", "m20", None, without(20), f"{M20}; {NOT_HERE}"),
        ("org/name", None, 4, without(4), f"--vocab-size 4; {NOT_HERE}"),
        ("org/name", "org/other", None, DEFAULT, f"default ids 1000-4999; {NOT_HERE}"),
    ],
)
def test_the_first_source_that_is_there_and_every_bound_that_is_known(
    tokenizer: str | None,
    model: str | None,
    vocab_size: int | None,
    expected: list[int],
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t30", tokenizer=bpe(30, (30, True)))
    write(tmp_path / "m20", config={"vocab_size": 20})
    write(tmp_path / "m40", config={"vocab_size": 40})
    found = find_vocabulary(tokenizer, model, vocab_size)
    assert (found.allowed.tolist(), found.source) == (expected, source)


@loop_over(("tokenizer", "says"), TABLES["refused"])
def test_a_path_without_a_tokenizer_is_refused(
    tokenizer: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t", tokenizer=bpe(30))
    for name in ("empty", "pictures"):
        (tmp_path / name).mkdir()
    (tmp_path / "pictures" / "a.png").touch()
    with pytest.raises(UsageError, match=re.escape(says)):
        find_vocabulary(tokenizer, None, None)


def test_a_name_of_the_hub_that_is_not_here_may_exist_elsewhere() -> None:
    assert locate_tokenizer("org/name") is None
    assert locate_tokenizer("gpt2-of-no-one") is None


def test_a_name_is_looked_up_in_the_local_cache_at_its_current_revision(empty_cache: Path) -> None:
    repository = empty_cache / "models--Qwen--Qwen3-8B"
    write(repository / "snapshots" / "aaa", tokenizer=bpe(10))
    write(repository / "snapshots" / "bbb", tokenizer=bpe(20))
    write(repository / "snapshots" / "ccc", preprocessor_config={})
    assert len(find_vocabulary("Qwen/Qwen3-8B", None, None).allowed) == 10
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("bbb\n")
    assert len(find_vocabulary("Qwen/Qwen3-8B", None, None).allowed) == 20
    assert len(find_vocabulary(None, "Qwen/Qwen3-8B", None).allowed) == 20
    (repository / "refs" / "main").write_text("ccc")  # half a download
    assert len(find_vocabulary("Qwen/Qwen3-8B", None, None).allowed) == 10


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_the_cache_is_where_the_environment_puts_it(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, str(tmp_path / "there"))
    below = {
        "HF_HUB_CACHE": ".",
        "HF_HOME": "hub",
        "XDG_CACHE_HOME": "huggingface/hub",
        "HOME": ".cache/huggingface/hub",
    }
    write(tmp_path / "there" / below[variable] / "models--gpt2" / "snapshots" / "r", tokenizer=bpe(10))
    assert len(find_vocabulary("gpt2", None, None).allowed) == 10


@loop_over(
    ("files", "says"),
    [
        ({}, "holds no "),
        ({"config": {"model_type": "qwen3"}}, "holds no tokenizer.json"),
        ({"tokenizer": '{"model": {"vocab": {"a": 0'}, "tokenizer.json: not JSON of the expected form"),
        ({"tokenizer": {"model": {"vocab": 3}}}, "tokenizer.json: not JSON of the expected form"),
        ({"tokenizer": {"version": "1.0"}}, "tokenizer.json: not JSON of the expected form"),
        ({"tokenizer": ""}, "tokenizer.json: not JSON of the expected form"),
        ({"vocab": {"a": "b"}}, "vocab.json: not JSON of the expected form"),
        ({"tokenizer": bpe(3), "config": "[]"}, "config.json is not a JSON object"),
        ({"tokenizer": bpe(3), "tokenizer_config": "{"}, "tokenizer_config.json is not valid JSON"),
        ({"tokenizer": bpe(2, (0, True), (1, True))}, "no token id is left"),
    ],
)
def test_a_tokenizer_directory_that_cannot_be_read_is_refused_in_one_line(
    files: dict[str, Any], says: str, tmp_path: Path
) -> None:
    directory = str(write(tmp_path / "model", **files))
    with pytest.raises(UsageError) as raised:
        find_vocabulary(directory, None, None)
    assert str(raised.value).startswith("--tokenizer ")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    # The same behind the model's name, which the user may not have typed: passed over, and said.
    passed_over = find_vocabulary(None, directory, None)
    assert passed_over.allowed.tolist() == DEFAULT
    assert says in passed_over.source


@pytest.mark.parametrize("vocab_size", [0, -5])
def test_a_vocabulary_without_ids_is_refused(vocab_size: int) -> None:
    with pytest.raises(UsageError, match=rf"^--vocab-size {vocab_size}: "):
        find_vocabulary(None, None, vocab_size)


def test_a_bound_below_every_id_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", tokenizer=bpe(5, (0, True)))
    with pytest.raises(UsageError, match="no token id is left to draw prompts from"):
        find_vocabulary(str(directory), None, 1)


def test_the_committed_tokenizer_allows_all_but_special_tokens() -> None:
    vocabulary: Vocabulary = read_vocabulary(Path(__file__).parents[1] / "data" / "tokenizer")
    assert vocabulary.allowed.tolist() == list(range(1, 1500))


def test_a_tokenizer_made_here_allows_all_but_special_tokens(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the tokenizer extra is not installed")
    from builders.tiny_tokenizer import make_tokenizer

    directory = make_tokenizer(tmp_path / "made", vocab_size=1200, corpus_bytes=300_000)
    assert find_vocabulary(str(directory), None, None).allowed.tolist() == list(range(1, 1200))
