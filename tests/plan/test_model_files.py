"""Vocabulary: never a special id, never one beyond the model's vocabulary, and where it came from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.base.errors import UsageError
from loadgen.plan.model_files import find_vocabulary, read_vocabulary

TABLES = read_tables("model_files")

DEFAULT = list(range(1000, 5000))


def write(directory: Path, **files: Any) -> Path:
    """`tokenizer_config={…}` becomes tokenizer_config.json; a string is written as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if "bpe" in content:
            size, added, texts = content["bpe"]
            content = bpe(size, *added, **texts)
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


# Files ({"bpe": [size, added, texts]} is made), then the first id, the one after the last, and the gaps.
@loop_over_named(("files", "allowed"), TABLES["directories"])
def test_what_a_directory_allows(files: dict[str, Any], allowed: Any, tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path / "model", **files))
    begin, end, gaps = allowed
    assert vocabulary.allowed.tolist() == [i for i in range(begin, end) if i not in gaps]
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


@loop_over(("files", "says"), TABLES["unreadable"])
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
