"""A Qwen3 of 1.9 M random weights as a GGUF file, with its tokenizer, for llama.cpp; made in seconds.

Run with a Python that has `gguf` and `tokenizers`: `python tests/engines/tiny_gguf.py FILE.gguf [MODEL]`.
With the directory of the tiny model (tiny_model.py) its weights are taken: vLLM and llama.cpp serve the same.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_VOCAB, _HIDDEN, _INNER, _LAYERS, _HEADS, _KV_HEADS, _HEAD, _CONTEXT = 6002, 128, 384, 2, 4, 2, 32, 8192
_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_SHAPES = {
    "attn_q": (_HEADS * _HEAD, _HIDDEN), "attn_k": (_KV_HEADS * _HEAD, _HIDDEN),
    "attn_v": (_KV_HEADS * _HEAD, _HIDDEN), "attn_output": (_HIDDEN, _HEADS * _HEAD),
    "attn_q_norm": (_HEAD,), "attn_k_norm": (_HEAD,), "attn_norm": (_HIDDEN,), "ffn_norm": (_HIDDEN,),
    "ffn_gate": (_INNER, _HIDDEN), "ffn_up": (_INNER, _HIDDEN), "ffn_down": (_HIDDEN, _INNER),
}  # fmt: skip


def make_gguf(target: Path, model: Path | None = None) -> None:
    """Write the file: matrices as float16, vectors as float32, the tokenizer and its chat template."""
    gguf: Any = importlib.import_module("gguf")
    partial = target.with_name(target.name + ".partial")
    writer = gguf.GGUFWriter(partial, "qwen3")
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_key_length(_HEAD)
    writer.add_value_length(_HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    with tempfile.TemporaryDirectory() as directory:
        _add_tokenizer(writer, _made_tokenizer(Path(directory)) if model is None else model)
    tensors = _random() if model is None else _tensors(model / "model.safetensors")
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.astype(np.float16 if tensor.ndim == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def _made_tokenizer(directory: Path) -> Path:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from builders.tiny_tokenizer import ADDED, make_tokenizer

    return make_tokenizer(directory, _VOCAB - len(ADDED))


def _add_tokenizer(writer: Any, model: Path) -> None:
    """The byte-level BPE: tokens by number, merges, which are special, and the chat template."""
    kinds: Any = importlib.import_module("gguf").TokenType
    tokenizer = json.loads((model / "tokenizer.json").read_text("utf-8"))
    settings = json.loads((model / "tokenizer_config.json").read_text("utf-8"))
    special = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    ids = {**tokenizer["model"]["vocab"], **special}
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.CONTROL if token in special else kinds.NORMAL for token in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_eos_token_id(special[settings["eos_token"]])
    writer.add_pad_token_id(special[settings["pad_token"]])
    writer.add_add_bos_token(False)
    template = model / "chat_template.jinja"
    writer.add_chat_template(template.read_text("utf-8") if template.is_file() else settings["chat_template"])


def _random() -> dict[str, Any]:
    """Weights as small as those of a new model; norms of 1."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (_VOCAB, _HIDDEN),
        "output_norm.weight": (_HIDDEN,),
        "output.weight": (_VOCAB, _HIDDEN),
    }
    for layer in range(_LAYERS):
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in _SHAPES.items()}
    return {
        name: rng.normal(0, 0.02, shape) if len(shape) == 2 else np.ones(shape)
        for name, shape in shapes.items()
    }


def _tensors(file: Path) -> dict[str, Any]:
    """The tensors of a safetensors file in bfloat16, as float32, by their names in GGUF."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        halves = np.frombuffer(data[begin:end], "<u2").astype(np.uint32)
        tensors[_named(name)] = (halves << 16).view(np.float32).reshape(entry["shape"])
    return tensors


def _named(name: str) -> str:
    """A tensor's name in GGUF: `model.layers.0.mlp.up_proj.weight` is `blk.0.ffn_up.weight`."""
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{_PARTS['.'.join(part)]}.{kind}"


if __name__ == "__main__":
    made = Path(sys.argv[1])
    if not made.is_file():
        make_gguf(made, *map(Path, sys.argv[2:3]))
    print(made)
