"""Text prompts: the texts that `vllm bench serve --dataset-name random` would send, token for token.

They exist to reproduce other clients' runs. The texts are consecutive ids of the vocabulary, decoded:
dictionary-like, and for one seed always the same, so a second run may meet the server's prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.plan.prompts.random_ids import PromptShape, drawn_lens, length_bounds
from loadgen.plan.prompts.tokenizers import Tokenizer, load_tokenizer
from loadgen.plan.requests import PromptRequests

_MAX_ROUNDS = 10


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


def text_vllm(shape: PromptShape, tokenizer: Tokenizer, seed: int) -> TextPrompts:
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
        _inner_len(shape, tokenizer)
    inner_lens, output_lens = drawn_lens(shape, rng, added, least=0)
    offsets = rng.integers(0, tokenizer.vocab_size, n)
    allowed = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.all_special_ids)
    prefix: list[int] = []

    def drawn(count: int) -> list[int]:
        # Any id at all, special ones in the base vocabulary too: vLLM does not leave them out here.
        ids: list[int] = rng.integers(0, tokenizer.vocab_size, count).tolist()
        return ids

    if shape.prefix_len:
        first = allowed[rng.integers(0, len(allowed), shape.prefix_len)].tolist()
        _, prefix = fitted(tokenizer, first, shape.prefix_len, drawn)
    texts, counts = [], []
    for i, (offset, inner_len) in enumerate(zip(offsets.tolist(), inner_lens.tolist(), strict=True)):
        inner = allowed[(offset + i + np.arange(inner_len)) % len(allowed)].tolist()
        text, ids = fitted(tokenizer, prefix + inner, shape.prefix_len + inner_len, drawn)
        texts.append(text)
        counts.append(len(ids))
    return TextPrompts("text-vllm", texts, np.array(counts, np.int64), output_lens)


def text_vllm_0_9(shape: PromptShape, tokenizer: Tokenizer, seed: int) -> TextPrompts:
    """The random texts of vLLM 0.9–0.10.1 (mid-2025), cut to length but never filled (`text-vllm-0.9`).

    All draws come from the legacy `RandomState(seed)`, which is what numpy's global generator was, in
    this order: the prefix, input lengths, output lengths, offsets; special ids are not left out. Some
    texts re-encode short and stay short: 100 × 2048 with seed 0 and Qwen's tokenizer make 204169.
    """
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed {seed}: text-vllm-0.9 takes 0 to {2**32 - 1}, as numpy's RandomState does")
    state = np.random.RandomState(seed)
    shape = _of_its_time(shape)
    n, vocab_size, length = shape.num_prompts, tokenizer.vocab_size, _inner_len(shape, tokenizer)
    prefix = state.randint(0, vocab_size, shape.prefix_len).tolist()
    low, high = length_bounds(length, shape.range_ratio_input, shape.compat, least=0)
    inner_lens = state.randint(low, high + 1, n, np.int64)
    low, high = length_bounds(shape.output_len, shape.range_ratio_output, shape.compat)
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


FORMATS = {"text-vllm": text_vllm, "text-vllm-0.9": text_vllm_0_9}


def text_prompts(prompt_format: str, shape: PromptShape, tokenizer: str | None, seed: int) -> TextPrompts:
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


def fitted(
    tokenizer: Tokenizer, ids: list[int], length: int, drawn: Callable[[int], list[int]]
) -> tuple[str, list[int]]:
    """A text that encodes to `length` tokens, and that encoding, starting from the text of `ids`.

    What is too long is cut, what is too short gets random ids (`drawn(n)`), and the result is decoded
    again; after ten rounds it is what it is.
    """
    for rounds_left in range(_MAX_ROUNDS, -1, -1):
        text = tokenizer.decode(ids)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) == length or rounds_left == 0:
            break
        if len(ids) < length:
            ids = ids + drawn(length - len(ids))
        ids = ids[:length]
    return text, ids


def _of_its_time(shape: PromptShape) -> PromptShape:
    """The shape with vLLM's meaning of a range ratio as it was then: both bounds rounded down."""
    return replace(shape, compat="vllm-0.9") if shape.compat == "vllm" else shape


def _inner_len(shape: PromptShape, tokenizer: Tokenizer) -> int:
    """Tokens of a prompt without prefix and what the tokenizer adds; UsageError where none may be left."""
    added = tokenizer.num_special_tokens_to_add()
    length = max(0, shape.input_len - added)
    if shape.prefix_len + length_bounds(length, shape.range_ratio_input, shape.compat, least=0)[0] < 1:
        raise UsageError(
            f"--random-input-len {shape.input_len}: no prompt is left after the "
            f"{added} tokens that the tokenizer adds to each: give more"
        )
    return length
