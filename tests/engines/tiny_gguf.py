"""The tiny model as a GGUF file, for llama.cpp: the same weights and tokens, written in seconds.

Run with a Python that has `gguf`: `python tests/engines/tiny_gguf.py MODEL_DIRECTORY FILE.gguf`.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

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


def make_gguf(model: Path, target: Path) -> None:
    """Write the model of a directory: matrices as float16, vectors as float32, its tokenizer and template."""
    gguf: Any = importlib.import_module("gguf")

    config = json.loads((model / "config.json").read_text("utf-8"))
    partial = target.with_name(target.name + ".partial")
    writer = gguf.GGUFWriter(partial, "qwen3")
    writer.add_name(model.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    _add_tokenizer(writer, model, config["eos_token_id"])
    for name, tensor in _tensors(model / "model.safetensors").items():
        kept = np.float16 if tensor.ndim == 2 else np.float32
        writer.add_tensor(_named(name), tensor.astype(kept))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def _add_tokenizer(writer: Any, model: Path, end_of_turn: int) -> None:
    """The byte-level BPE: tokens by number, merges, which are special, and the chat template."""
    kinds: Any = importlib.import_module("gguf").TokenType
    tokenizer = json.loads((model / "tokenizer.json").read_text("utf-8"))
    settings = json.loads((model / "tokenizer_config.json").read_text("utf-8"))
    ids = dict(tokenizer["model"]["vocab"])
    special = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    ids |= special
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.CONTROL if t in special else kinds.NORMAL for t in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_eos_token_id(end_of_turn)
    writer.add_pad_token_id(special[settings["pad_token"]])
    writer.add_add_bos_token(False)
    template = model / "chat_template.jinja"
    text = template.read_text("utf-8") if template.is_file() else settings.get("chat_template", "")
    if text:
        writer.add_chat_template(text)


def _tensors(file: Path) -> dict[str, Any]:
    """The tensors of a safetensors file in bfloat16, as float32."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", entry
        begin, end = entry["data_offsets"]
        halves = np.frombuffer(data[begin:end], "<u2").astype(np.uint32)
        tensors[name] = (halves << 16).view(np.float32).reshape(entry["shape"])
    return tensors


def _named(name: str) -> str:
    """A tensor's name in GGUF: `model.layers.0.mlp.up_proj.weight` is `blk.0.ffn_up.weight`."""
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{_PARTS['.'.join(part)]}.{kind}"


if __name__ == "__main__":
    source, made = map(Path, sys.argv[1:3])
    if not made.is_file():
        make_gguf(source, made)
    print(made)
