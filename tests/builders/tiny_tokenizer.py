"""A byte-level BPE tokenizer in Qwen's manner, trained in a second on the standard library's sources."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# One special token inside the base vocabulary (as Llama 2 and GPT-2 have them) and two added after it (as
# Qwen has all of them): the two places that code which leaves special ids out must look at.
IN_VOCABULARY = "<|endoftext|>"
ADDED = ("<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def make_tokenizer(directory: Path, vocab_size: int = 4000, corpus_bytes: int = 2_000_000) -> Path:
    """Write tokenizer.json and tokenizer_config.json into `directory`, and return it.

    The base vocabulary has `vocab_size` ids; the two special tokens added after it have the next two, and
    the second of them, `<|im_end|>`, ends a turn.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[IN_VOCABULARY],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_standard_library(corpus_bytes), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ADDED])
    if tokenizer.get_vocab_size(with_added_tokens=False) != vocab_size:
        raise ValueError(f"{corpus_bytes} bytes of text are too few for {vocab_size} ids")
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": ADDED[1], "pad_token": IN_VOCABULARY,
             "additional_special_tokens": [ADDED[0]], "clean_up_tokenization_spaces": False,
             "model_max_length": 131072, "chat_template": CHAT_TEMPLATE},
        ),
        "utf-8",
    )  # fmt: skip
    return directory


def _standard_library(limit: int) -> Iterator[str]:
    taken = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text("utf-8", errors="replace")
        yield text
        taken += len(text)
        if taken >= limit:
            return
