"""Listed texts: those of a data set, as vLLM picks and orders them, and their tokens; `prefix_repetition`.

The texts of `prefix_repetition` are those of `vllm bench serve`, token for token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.plan.planned_requests import DataFacts, PromptRequests, fingerprint
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import PlanInputs, SourcedRequests
from loadgen.plan.tokenizers import FullTokenizer, Tokenizer, find_needed_tokenizer, fit_text, load_tokenizer

PREFIX_REPETITION = "prefix_repetition"
_SEEDS = 2**32  # that numpy's RandomState takes
_BATCH = 1024  # texts that are counted at once


class ListedTexts(PromptRequests):
    """Request i sends text `which[i]`, a place in `texts`; the columns are int64[requests], in tokens."""

    format = "text"

    def __init__(self, texts: list[str], which: Int64, input_lens: Int64, output_lens: Int64) -> None:
        self.texts = texts
        self.which = which
        self.input_lens = input_lens
        self.output_lens = output_lens

    def prompt(self, i: int) -> str:
        """Return the text of request i."""
        return self.texts[int(self.which[i])]

    def digest(self) -> str:
        """Return a hash of every text, of who sends which, and of all lengths."""
        texts = (text.encode("utf-8", "surrogatepass") for text in self.texts)
        ends = np.cumsum([len(text) for text in self.texts], dtype=np.int64)
        return fingerprint(self.format, (self.which, self.input_lens, self.output_lens, ends), texts)


class FileTexts(ListedTexts):
    """Listed texts of a file; `rows` has the row of each text, counted from 1."""

    def __init__(
        self, texts: list[str], which: Int64, lens: tuple[Int64, Int64], path: str, rows: Sequence[int]
    ) -> None:
        super().__init__(texts, which, *lens)
        self._path, self._rows = path, rows

    def name_row(self, i: int) -> str:
        """Name request i by file and row, as `data.jsonl row 17`."""
        return f"{self._path} row {self._rows[int(self.which[i])]}"


def requests(inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of `prefix_repetition`, as many for each prefix, with a note if that is fewer.

    Raises UsageError for a file, an unknown number of requests, fewer than prefixes, a seed that numpy
    refuses, or no tokenizer.
    """
    profile, seed = inputs.profile, inputs.shared_seed
    prefixes, most = profile.prefix_repetition_num_prefixes, inputs.most
    if profile.dataset_path:
        raise UsageError(
            f"--dataset-path: --dataset-name {PREFIX_REPETITION} makes its prompts and reads no file"
        )
    if most is None:
        raise UsageError(
            f"--duration with {PREFIX_REPETITION} needs --num-prompts: texts are all built beforehand"
        )
    if most < prefixes:
        raise UsageError(
            f"--num-prompts {most} is less than --prefix-repetition-num-prefixes {prefixes}: each prefix "
            "begins as many prompts as the others, at least one"
        )
    if not 0 <= seed < _SEEDS:
        raise UsageError(
            f"--seed {seed}: {PREFIX_REPETITION} takes 0 to {_SEEDS - 1}, as numpy's RandomState does"
        )
    tokenizer = find_needed_tokenizer(
        inputs.subject, f"--dataset-name {PREFIX_REPETITION} sends text of exact lengths"
    )
    texts, shared = _make_repetition(profile, most, load_tokenizer(tokenizer, PREFIX_REPETITION), seed)
    sent = len(texts.input_lens)
    facts = DataFacts(
        kind=PREFIX_REPETITION,
        sent=sent,
        text="random tokens of the vocabulary, decoded",
        reusable_tokens=shared,
    )
    notes = () if sent == most else (f"{sent} of {most} requests: as many for each of {prefixes} prefixes",)
    return SourcedRequests(texts, facts, tokenizer=tokenizer, notes=notes)


def _make_repetition(profile: Profile, most: int, tokenizer: Tokenizer, seed: int) -> tuple[ListedTexts, int]:
    """Make the texts, and count the tokens of them that an earlier prompt begins with too.

    Drawn from the legacy `RandomState(seed)` in this order: a prefix and what fills it up, then its suffixes,
    each with its own; the order of sending is that of `random.Random(seed).shuffle`.
    """
    state = np.random.RandomState(seed)

    def draw_ids(n: int) -> list[int]:
        ids: list[int] = state.randint(0, tokenizer.vocab_size, n).tolist()
        return ids

    each = most // profile.prefix_repetition_num_prefixes
    made: list[tuple[str, int]] = []
    shared = 0
    for _ in range(profile.prefix_repetition_num_prefixes):
        prefix = _draw_exact(tokenizer, profile.prefix_repetition_prefix_len, draw_ids)
        shared += len(prefix) * (each - 1)
        for _ in range(each):
            ids = prefix + _draw_exact(tokenizer, profile.prefix_repetition_suffix_len, draw_ids)
            made.append((tokenizer.decode(ids), len(ids)))
    if not profile.disable_shuffle:
        random.Random(seed).shuffle(made)
    texts, lens = zip(*made, strict=True)
    n = len(made)
    output_lens = np.full(n, profile.prefix_repetition_output_len, np.int64)
    return ListedTexts(list(texts), np.arange(n), np.array(lens, np.int64), output_lens), shared


def _draw_exact(tokenizer: Tokenizer, length: int, draw_ids: Callable[[int], list[int]]) -> list[int]:
    """Draw ids whose text encodes to `length` tokens again, as far as ten rounds settle it."""
    return fit_text(tokenizer, draw_ids(length), length, draw_ids)[1]


def shuffle_rows(rows: int, seed: int, disable_shuffle: bool) -> list[int]:
    """Return the order in which vLLM takes a file's rows: that of `random.Random(seed).shuffle`."""
    order = list(range(rows))
    if not disable_shuffle:
        random.Random(seed).shuffle(order)
    return order


def oversample_rows(kept: int, most: int | None, seed: int, no_oversample: bool) -> Int64:
    """Return which kept row each request sends, int64[requests]: each once, then random ones again.

    As many as are missing of `most` are drawn by `random.Random(seed).choice`.
    """
    missing = 0 if most is None or no_oversample else max(most - kept, 0)
    again = random.Random(seed)
    return np.array([*range(kept), *(again.choice(range(kept)) for _ in range(missing))], np.int64)


def count_tokens(tokenizer: FullTokenizer, texts: list[str]) -> list[int]:
    """Count the tokens of each text, including those the tokenizer adds."""
    batches = (texts[begin : begin + _BATCH] for begin in range(0, len(texts), _BATCH))
    return [len(ids) for batch in batches for ids in tokenizer(batch)["input_ids"]]


def apply_template(tokenizer: FullTokenizer, name: str, text: str, more: Mapping[str, Any]) -> str:
    """Put a text as the user's message in the chat template, up to the answer; raises UsageError.

    `name` is the tokenizer's, for the error; `more` are variables of the template.
    """
    with ExitStack() as errors:
        errors.push(partial(_refuse_template, name))
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False, **more
        )
    raise AssertionError("unreachable")  # pragma: no cover


def _refuse_template(
    name: str, kind: type[BaseException] | None, error: BaseException | None, _: object
) -> None:
    """Raise UsageError for an error inside a template; a context's exit callback."""
    if isinstance(error, Exception):
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"--tokenizer {name}: its chat template cannot be applied ({why}): pass --skip-chat-template"
        ) from error
