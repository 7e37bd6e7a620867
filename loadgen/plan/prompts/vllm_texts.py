"""vLLM texts: the texts of `vllm bench serve` by `random` and `prefix_repetition`, token for token.

They exist to reproduce other clients' runs. The texts are consecutive ids of the vocabulary, decoded:
dictionary-like, and for one seed always the same, so a second run may meet the server's prefix cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.plan.data_facts import DataFacts
from loadgen.plan.plan_inputs import PlanInputs, SourcedRequests
from loadgen.plan.planned_requests import PromptRequests, fingerprint
from loadgen.plan.profile import Profile
from loadgen.plan.prompts.random_ids import PromptShape, draw_lens, find_length_bounds
from loadgen.plan.prompts.tokenizers import Tokenizer, find_needed_tokenizer, load_tokenizer

_MAX_ROUNDS = 10
PREFIX_REPETITION = "prefix_repetition"
_SEEDS = 2**32  # that numpy's RandomState takes


class TextPrompts(PromptRequests):
    """Texts that are all made beforehand; `input_lens` is the client's count, int64[requests]."""

    def __init__(self, form: str, texts: list[str], input_lens: Int64, output_lens: Int64) -> None:
        self.format = form
        self.texts = texts
        self.input_lens = input_lens
        self.output_lens = output_lens

    def prompt(self, i: int) -> str:
        """Text i."""
        return self.texts[i]


def make_text_vllm(shape: PromptShape, tokenizer: Tokenizer, seed: int) -> TextPrompts:
    """The random texts of vLLM since PR #24937 (September 2025), cut or filled until exact (`text-vllm`).

    All draws come from one `default_rng(seed)` in this order: input lengths, output lengths, offsets,
    the prefix, then the filling. `input_lens` is exact but for texts that do not settle within ten rounds.
    The tokens that the tokenizer adds to every prompt are part of input_len.
    """
    if seed < 0:
        raise UsageError(f"--seed {seed}: text-vllm takes 0 or more, as numpy's default_rng does")
    rng = np.random.default_rng(seed)
    n, added = shape.num_prompts, tokenizer.num_special_tokens_to_add()
    if shape.input_dist is None:
        _find_inner_len(shape, tokenizer)
    inner_lens, output_lens = draw_lens(shape, rng, added, least=0)
    offsets = rng.integers(0, tokenizer.vocab_size, n)
    allowed = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.all_special_ids)
    prefix: list[int] = []

    def draw_ids(count: int) -> list[int]:
        # Any id at all, special ones in the base vocabulary too: vLLM does not leave them out here.
        ids: list[int] = rng.integers(0, tokenizer.vocab_size, count).tolist()
        return ids

    if shape.prefix_len:
        first = allowed[rng.integers(0, len(allowed), shape.prefix_len)].tolist()
        _, prefix = fit_text(tokenizer, first, shape.prefix_len, draw_ids)
    texts, counts = [], []
    for i, (offset, inner_len) in enumerate(zip(offsets.tolist(), inner_lens.tolist(), strict=True)):
        inner = allowed[(offset + i + np.arange(inner_len)) % len(allowed)].tolist()
        text, ids = fit_text(tokenizer, prefix + inner, shape.prefix_len + inner_len, draw_ids)
        texts.append(text)
        counts.append(len(ids))
    return TextPrompts("text-vllm", texts, np.array(counts, np.int64), output_lens)


def make_text_vllm_0_9(shape: PromptShape, tokenizer: Tokenizer, seed: int) -> TextPrompts:
    """The random texts of vLLM 0.9–0.10.1 (mid-2025), cut to length but never filled (`text-vllm-0.9`).

    All draws come from the legacy `RandomState(seed)`, which is what numpy's global generator was, in
    this order: the prefix, input lengths, output lengths, offsets; special ids are not left out. Some
    texts re-encode short and stay short: 100 × 2048 with seed 0 and Qwen's tokenizer make 204169.
    """
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed {seed}: text-vllm-0.9 takes 0 to {2**32 - 1}, as numpy's RandomState does")
    state = np.random.RandomState(seed)
    shape = _use_old_ratio(shape)
    n, vocab_size, length = shape.num_prompts, tokenizer.vocab_size, _find_inner_len(shape, tokenizer)
    prefix = state.randint(0, vocab_size, shape.prefix_len).tolist()
    low, high = find_length_bounds(length, shape.range_ratio_input, shape.compat, least=0)
    inner_lens = state.randint(low, high + 1, n, np.int64)
    low, high = find_length_bounds(shape.output_len, shape.range_ratio_output, shape.compat)
    output_lens = state.randint(low, high + 1, n, np.int64)
    offsets = state.randint(0, vocab_size, n)
    texts, counts = [], []
    for i, (offset, inner_len) in enumerate(zip(offsets.tolist(), inner_lens.tolist(), strict=True)):
        inner = ((offset + i + np.arange(inner_len)) % vocab_size).tolist()
        text = tokenizer.decode(prefix + inner)
        ids = tokenizer.encode(text, add_special_tokens=False)[: shape.prefix_len + inner_len]
        texts.append(tokenizer.decode(ids))
        counts.append(len(ids))
    return TextPrompts("text-vllm-0.9", texts, np.array(counts, np.int64), output_lens)


FORMATS = {"text-vllm": make_text_vllm, "text-vllm-0.9": make_text_vllm_0_9}


def make_vllm_texts(prompt_format: str, shape: PromptShape, tokenizer: str | None, seed: int) -> TextPrompts:
    """All texts of `prompt_format`, made at once: filling one draws from the generator of the next.

    Raises UsageError without a tokenizer, or one that cannot be loaded, and of what that client has not.
    """
    if shape.prefix_groups > 1:
        raise UsageError(
            f"--prefix-groups: {prompt_format} has one prefix: use --prompt-format corpus or ids"
        )
    if prompt_format == "text-vllm-0.9" and (shape.input_dist or shape.output_dist):
        raise UsageError(
            "--input-dist and --output-dist: vLLM 0.9 has neither: use --prompt-format text-vllm"
        )
    return FORMATS[prompt_format](shape, load_tokenizer(tokenizer, prompt_format), seed)


def fit_text(
    tokenizer: Tokenizer, ids: list[int], length: int, draw_ids: Callable[[int], list[int]]
) -> tuple[str, list[int]]:
    """A text that encodes to `length` tokens, and that encoding, starting from the text of `ids`.

    What is too long is cut, what is too short gets random ids (`draw_ids(n)`), and the result is decoded
    again; after ten rounds it is what it is.
    """
    for rounds_left in range(_MAX_ROUNDS, -1, -1):
        text = tokenizer.decode(ids)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) == length or rounds_left == 0:
            break
        if len(ids) < length:
            ids = ids + draw_ids(length - len(ids))
        ids = ids[:length]
    return text, ids


def _use_old_ratio(shape: PromptShape) -> PromptShape:
    """The shape with vLLM's meaning of a range ratio as it was then: both bounds rounded down."""
    return replace(shape, compat="vllm-0.9") if shape.compat == "vllm" else shape


def _find_inner_len(shape: PromptShape, tokenizer: Tokenizer) -> int:
    """Tokens of a prompt without prefix and what the tokenizer adds; UsageError where none may be left."""
    added = tokenizer.num_special_tokens_to_add()
    length = max(0, shape.input_len - added)
    if shape.prefix_len + find_length_bounds(length, shape.range_ratio_input, shape.compat, least=0)[0] < 1:
        raise UsageError(
            f"--random-input-len {shape.input_len}: no prompt is left after the "
            f"{added} tokens that the tokenizer adds to each: give more"
        )
    return length


class ListedTexts(PromptRequests):
    """Request i sends text `which[i]`, a place in `texts`; the columns are int64[requests], in tokens."""

    format = "text"

    def __init__(self, texts: list[str], which: Int64, input_lens: Int64, output_lens: Int64) -> None:
        self.texts = texts
        self.which = which
        self.input_lens = input_lens
        self.output_lens = output_lens

    def prompt(self, i: int) -> str:
        """The text of request i."""
        return self.texts[int(self.which[i])]

    def digest(self) -> str:
        """A fingerprint of every text, of who sends which, and of all lengths."""
        texts = (text.encode("utf-8", "surrogatepass") for text in self.texts)
        ends = np.cumsum([len(text) for text in self.texts], dtype=np.int64)
        return fingerprint(self.format, (self.which, self.input_lens, self.output_lens, ends), texts)


class FileTexts(ListedTexts):
    """Listed texts of a file; `rows` has the row of each text, counted from 1."""

    def __init__(
        self,
        texts: list[str],
        which: Int64,
        lens: tuple[Int64, Int64],
        path: str,
        rows: Sequence[int],
    ) -> None:
        super().__init__(texts, which, *lens)
        self._path, self._rows = path, rows

    def name_row(self, i: int) -> str:
        """Request i by file and row, as `data.jsonl row 17`."""
        return f"{self._path} row {self._rows[int(self.which[i])]}"


def requests(inputs: PlanInputs) -> SourcedRequests:
    """The requests of a profile; raises UsageError where there are fewer than prefixes, or no tokenizer."""
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
    """The texts, and how many tokens of them an earlier prompt begins with too.

    Drawn from the legacy `RandomState(seed)` in this order: a prefix and what fills it up, then its
    suffixes, each with its own; the order of sending is that of `random.Random(seed).shuffle`.
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
    """Ids whose text encodes to as many tokens again, as far as ten rounds settle it."""
    return fit_text(tokenizer, draw_ids(length), length, draw_ids)[1]


def shuffle_rows(rows: int, seed: int, disable_shuffle: bool) -> list[int]:
    """The rows in the order in which vLLM meets them: that of `random.Random(seed).shuffle`."""
    order = list(range(rows))
    if not disable_shuffle:
        random.Random(seed).shuffle(order)
    return order


def oversample_rows(kept: int, most: int | None, seed: int, no_oversample: bool) -> Int64:
    """Which of the kept rows each request sends: int64[requests].

    Each once, then as many as are missing of `most`, drawn by `random.Random(seed).choice`.
    """
    missing = 0 if most is None or no_oversample else max(most - kept, 0)
    again = random.Random(seed)
    return np.array([*range(kept), *(again.choice(range(kept)) for _ in range(missing))], np.int64)
