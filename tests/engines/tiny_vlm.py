"""An Idefics3 of random weights with tokenizer and processor, made offline in seconds.

An image has tokens by its size, as with Qwen2.5-VL, whose processor needs torchvision, which is not among the
engines' packages. Run with the engines' Python, which has torch: `python tests/engines/tiny_vlm.py MODEL`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, cast

VOCAB_SIZE = 6000  # special tokens are added after it
PATCH, TILE, MOST_TILES = 14, 56, 4  # pixels of a patch and of a tile, and tiles of the longer side
SCALE = 2  # patches a side that become one token
IMAGE = "<image>"
MARKS = (IMAGE, "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
PLACES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
# Text is as it is, an image is its token.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}" + IMAGE + "{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_vlm(directory: Path) -> None:
    """Write config, weights (bfloat16 safetensors), tokenizer and processor."""
    import transformers

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from builders.tiny_tokenizer import ADDED, make_tokenizer

    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_tokenizer(partial, VOCAB_SIZE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(partial))
    tokenizer.add_special_tokens({"additional_special_tokens": [ADDED[0], *MARKS, *PLACES]})
    tokenizer.chat_template = CHAT_TEMPLATE
    end_of_turn = tokenizer.convert_tokens_to_ids(ADDED[1])
    transformers.set_seed(0)
    made = cast(Any, transformers)
    config = made.Idefics3Config(
        text_config=transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=8192,
            eos_token_id=end_of_turn,
            bos_token_id=None,
            pad_token_id=tokenizer.pad_token_id,
        ),
        vision_config={
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": TILE,
            "patch_size": PATCH,
        },
        image_token_id=tokenizer.get_vocab()[IMAGE],
        pad_token_id=tokenizer.get_vocab()[tokenizer.pad_token],
        scale_factor=SCALE,
    )
    model = transformers.Idefics3ForConditionalGeneration(config).bfloat16()
    model.generation_config.eos_token_id = end_of_turn
    model.save_pretrained(str(partial))
    pictures = made.Idefics3ImageProcessor(
        size={"longest_edge": MOST_TILES * TILE}, max_image_size={"longest_edge": TILE}
    )
    tokens = (TILE // PATCH // SCALE) ** 2
    processor = made.Idefics3Processor(pictures, tokenizer, image_seq_len=tokens, chat_template=CHAT_TEMPLATE)
    processor.save_pretrained(str(partial))
    partial.rename(directory)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if not (target / "config.json").is_file():
        make_vlm(target)
    print(target)
