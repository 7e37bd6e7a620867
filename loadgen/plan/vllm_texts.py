"""vLLM texts: the texts of `vllm bench serve` by `random`, token for token.

They exist to reproduce other clients' runs. The texts are consecutive ids of the vocabulary, decoded:
dictionary-like, and for one seed always the same, so a second run may meet the server's prefix cache.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.plan.random_prompts import PromptShape, RandomPrompts, draw_lens, find_length_bounds
from loadgen.plan.tokenizers import Tokenizer, fit_text, load_tokenizer

TEXT_VLLM, TEXT_VLLM_0_9 = "text-vllm", "text-vllm-0.9"


class TextPrompts(RandomPrompts):
    """Texts that are all made beforehand; `input_lens` is the client's count, int64[requests]."""

    def __init__(
        self, form: str, texts: list[str], input_lens: Int64, output_lens: Int64, reusable_tokens: int
    ) -> None:
        self.format = form
        self.reusable_tokens = reusable_tokens
        self.texts = texts
        self.input_lens = input_lens
        self.output_lens = output_lens

    def prompt(self, i: int) -> str:
        """Return text i."""
        return self.texts[i]


def make_text_vllm(shape: PromptShape, tokenizer: Tokenizer, seed: int) -> TextPrompts:
    """Make the random texts of vLLM since PR #24937 (September 2025): `text-vllm`.

    Texts are cut or filled until exact. All draws come from one `default_rng(seed)` in this order: input
    lengths, output lengths, offsets, the prefix, then the filling. `input_lens` is exact but for texts that
    do not settle within ten rounds. The tokens that the tokenizer adds to every prompt are part of input_len.
    Raises UsageError for a negative seed, or where no prompt is left.
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
    return _gather_texts(TEXT_VLLM, texts, counts, output_lens, shape)


def make_text_vllm_0_9(shape: PromptShape, tokenizer: Tokenizer, seed: int) -> TextPrompts:
    """Make the random texts of vLLM 0.9–0.10.1 (mid-2025), cut but never filled: `text-vllm-0.9`.

    All draws come from the legacy `RandomState(seed)`, which is what numpy's global generator was, in this
    order: the prefix, input lengths, output lengths, offsets; special ids are not left out. Some texts
    re-encode short and stay short: 100 × 2048, seed 0 and Qwen's tokenizer make 204169. Raises UsageError.
    """
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed {seed}: text-vllm-0.9 takes 0 to {2**32 - 1}, as numpy's RandomState does")
    state = np.random.RandomState(seed)
    if shape.compat == "vllm":  # whose meaning of a range ratio was another: both bounds rounded down
        shape = replace(shape, compat="vllm-0.9")
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
    return _gather_texts(TEXT_VLLM_0_9, texts, counts, output_lens, shape)


def _gather_texts(
    form: str, texts: list[str], counts: list[int], output_lens: Int64, shape: PromptShape
) -> TextPrompts:
    """Make the prompts of these texts; reusable are the prefix's tokens, for each prompt but the first."""
    reusable = shape.prefix_len * max(0, shape.num_prompts - 1)
    return TextPrompts(form, texts, np.array(counts, np.int64), output_lens, reusable)


FORMATS = {TEXT_VLLM: make_text_vllm, TEXT_VLLM_0_9: make_text_vllm_0_9}


def make_vllm_texts(prompt_format: str, shape: PromptShape, tokenizer: str | None, seed: int) -> TextPrompts:
    """Make all prompts as the version of `vllm bench serve` that `prompt_format` names would.

    All at once, since they are drawn from one generator. Raises UsageError without a tokenizer that loads,
    and for options that this version lacks.
    """
    if shape.prefix_groups > 1:
        raise UsageError(
            f"--prefix-groups: {prompt_format} has one prefix: use --prompt-format corpus or ids"
        )
    if prompt_format == TEXT_VLLM_0_9 and (shape.input_dist or shape.output_dist):
        raise UsageError(
            "--input-dist and --output-dist: vLLM 0.9 has neither: use --prompt-format text-vllm"
        )
    return FORMATS[prompt_format](shape, load_tokenizer(tokenizer, prompt_format), seed)


def _find_inner_len(shape: PromptShape, tokenizer: Tokenizer) -> int:
    """Return a prompt's tokens without prefix and those the tokenizer adds; raises UsageError if none."""
    added = tokenizer.num_special_tokens_to_add()
    length = max(0, shape.input_len - added)
    if shape.prefix_len + find_length_bounds(length, shape.range_ratio_input, shape.compat, least=0)[0] < 1:
        raise UsageError(
            f"--random-input-len {shape.input_len}: no prompt is left after the "
            f"{added} tokens that the tokenizer adds to each: give more"
        )
    return length
