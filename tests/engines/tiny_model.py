"""A Qwen3 of 1.8 M random weights with its tokenizer, made offline in seconds.

Run with the engines' Python, which has torch: `python tests/engines/tiny_model.py DIRECTORY [LAYERS]`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

VOCAB_SIZE = 6000  # two special tokens are added after it
LAYERS = 2


def make_model(directory: Path, layers: int = LAYERS) -> None:
    """Write config, weights (bfloat16 safetensors) and tokenizer."""
    import transformers

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from builders.tiny_tokenizer import ADDED, make_tokenizer

    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_tokenizer(partial, VOCAB_SIZE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(partial))
    end_of_turn = tokenizer.convert_tokens_to_ids(ADDED[1])
    transformers.set_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=False,  # tied, they would repeat the last token for ever
        eos_token_id=end_of_turn,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = transformers.Qwen3ForCausalLM(config).bfloat16()
    model.generation_config.eos_token_id = end_of_turn
    model.save_pretrained(str(partial))
    partial.rename(directory)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if not (target / "config.json").is_file():
        make_model(target, *map(int, sys.argv[2:3]))
    print(target)
