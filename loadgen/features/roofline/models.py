"""Models: a decoder's shape, by its config.json or by a checkpoint's name, and the parameters that follow.

Norms and biases, which are under 0.1 % of any model here, are left out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel

from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.plan import model_files

# A family leaves these out of its config.json, because its code has defaults.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"head_dim": 256, "tie_word_embeddings": True, "vocab_size": 256000, "sliding_window": 4096},
    "gemma3_text": {
        "head_dim": 256,
        "tie_word_embeddings": True,
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window_pattern": 6,
    },
}
_TIED = ("gemma", "cohere")  # families whose head is the embedding by default
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
# Keys of layers whose cost is not modelled here.
_FOREIGN = (
    "linear_num_key_heads",
    "ssm_cfg",
    "mamba_d_state",
    "state_size",
    "index_topk",
    "attn_layer_period",
    "interleave_moe_layer_step",
    "encoder_layers",
    "block_configs",
)


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of multi-head latent attention (DeepSeek), which caches keys and values as one short vector."""

    query_rank: int  # 0: queries are not compressed
    rank: int
    nope: int  # of a head, without a position
    rope: int
    value: int


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder with grouped-query or latent attention and gated MLPs or experts."""

    source: str  # the config.json it is from
    model_type: str = ""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    intermediate: int  # of a dense MLP
    tied: bool  # the head is the embedding
    experts: int = 0  # E, routed, in each layer that has them
    experts_per_token: int = 0  # k
    expert_intermediate: int = 0
    shared_intermediate: int = 0  # of all shared experts of a layer
    dense_layers: int = 0  # of a mixture, those with an MLP for all tokens
    window: int = 0  # tokens that the local layers attend to
    window_layers: int = 0
    latent: Latent | None = None

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding; the output head has as many."""
        return self.vocabulary * self.hidden

    @property
    def attention(self) -> int:
        """Parameters of the attention of one layer."""
        if (latent := self.latent) is None:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        query = self.heads * (latent.nope + latent.rope)
        rank = latent.query_rank
        return (
            (self.hidden * rank + rank * query if rank else self.hidden * query)
            + self.hidden * (latent.rank + latent.rope)
            + latent.rank * self.heads * (latent.nope + latent.value)
            + self.heads * latent.value * self.hidden
        )

    @property
    def expert_layers(self) -> int:
        """The number of layers with routed experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def expert(self) -> int:
        """Parameters of one routed expert, summed over its layers."""
        return self.expert_layers * 3 * self.hidden * self.expert_intermediate

    @property
    def routers(self) -> int:
        """Parameters of the routers, which choose experts and are never quantized."""
        return self.expert_layers * self.hidden * self.experts

    @property
    def dense(self) -> int:
        """Parameters in the layers that every token uses, without the routers."""
        mlp = 3 * self.hidden * self.intermediate * (self.layers - self.expert_layers)
        shared = 3 * self.hidden * self.shared_intermediate * self.expert_layers
        return self.layers * self.attention + mlp + shared

    @property
    def non_embedding(self) -> int:
        """Parameters without embedding and head, as Qwen's model cards count."""
        return self.dense + self.routers + self.experts * self.expert

    @property
    def total(self) -> int:
        """All parameters."""
        return self.non_embedding + self.embedding * (1 if self.tied else 2)

    @property
    def active(self) -> int:
        """Parameters that one token uses, as model cards count: with embedding and head."""
        return self.total - (self.experts - self.experts_per_token) * self.expert

    def count_kv_values(self, layers: int) -> int:
        """Return how many numbers are cached per token in `layers` layers: keys and values, or latents."""
        if self.latent is not None:
            return layers * (self.latent.rank + self.latent.rope)
        return layers * 2 * self.kv_heads * self.head_dim

    def count_pair_flop(self, layers: int) -> int:
        """Return the FLOP of attention in `layers` layers between one token and an earlier one."""
        if self.latent is not None:
            return layers * 2 * self.heads * (self.latent.nope + self.latent.rope + self.latent.value)
        return layers * 4 * self.heads * self.head_dim


def read_architecture(path: Path) -> Architecture:
    """Read the architecture in a config.json, or in a directory's; raises UsageError."""
    file = model_files.find_config(path)
    return parse_architecture(model_files.read_json_object(file)[1], str(file))


def parse_architecture(config: Mapping[str, Any], source: str) -> Architecture:
    """Parse the architecture that a config declares; raises UsageError if it is not supported."""
    keys = _Keys(config, source)
    keys.refuse_foreign()
    layers, hidden = keys.require_count("num_hidden_layers", "num_layers"), keys.require_count("hidden_size")
    heads = keys.require_count("num_attention_heads", "n_head")
    experts = keys.find_count("num_experts", "n_routed_experts", "num_local_experts")
    window_layers = keys.count_window_layers(layers)
    return Architecture(
        source=source,
        model_type=keys.model_type,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=keys.find_count("num_key_value_heads", "multi_query_group_num") or heads,
        head_dim=keys.find_count("head_dim", "kv_channels", "attention_head_dim") or hidden // heads,
        vocabulary=keys.require_count("padded_vocab_size", "vocab_size"),
        intermediate=keys.require_count("intermediate_size", "ffn_hidden_size"),
        tied=keys.tied,
        window=keys.find_count("sliding_window") if window_layers else 0,
        window_layers=window_layers,
        latent=keys.read_latent(),
        **(keys.read_mixture(experts, layers) if experts else {}),
    )


class _Keys:
    """A config's values, looked up under the names that model families use."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        inner = model_files.find_text_part(config)
        self.outer, self.source = config, source
        self.model_type = str(inner.get("model_type") or config.get("model_type") or "")
        if self.model_type == "gemma3":
            self.model_type = "gemma3_text"
        self.values = {**_DEFAULTS.get(self.model_type, {}), **inner}

    def find_count(self, *names: str) -> int:
        """Return the value of the first of these keys that has an integer above 0; else 0."""
        values = (self.values.get(name) for name in names)
        integers = (value for value in values if isinstance(value, int) and not isinstance(value, bool))
        return next((value for value in integers if value > 0), 0)

    def require_count(self, *names: str) -> int:
        """Return the value of the first of these keys that has an integer above 0; raises UsageError."""
        if not (value := self.find_count(*names)):
            raise UsageError(
                f"{self.source} does not have {names[0]}: give the config.json of a language model"
            )
        return value

    @property
    def tied(self) -> bool:
        declared = self.values.get("tie_word_embeddings", self.outer.get("tie_word_embeddings"))
        return self.model_type.startswith(_TIED) if declared is None else bool(declared)

    def refuse_foreign(self) -> None:
        """Raise UsageError if the config declares layers whose bytes and arithmetic are not modelled."""
        key = next((name for name in _FOREIGN if self.values.get(name)), None)
        kinds = {str(kind) for kind in self.layer_types} - {_GLOBAL, _LOCAL}
        if key or kinds:
            what = key or ", ".join(sorted(kinds))
            raise UsageError(
                f"{self.source}: {self.model_type or 'the model'} has layers ({what}) whose bytes and "
                "arithmetic are not modelled: no roofline"
            )

    @property
    def layer_types(self) -> Sequence[Any]:
        return untrusted.read_list(self.values.get("layer_types"))

    def count_window_layers(self, layers: int) -> int:
        """Return how many of the layers attend only within the sliding window, by the family's rules.

        That is 0 without a window; else as `layer_types` or a pattern says, else half, some or all of them.
        """
        if not self.find_count("sliding_window") or self.values.get("use_sliding_window") is False:
            return 0
        if self.layer_types:
            return sum(kind == _LOCAL for kind in self.layer_types)
        if pattern := self.find_count("sliding_window_pattern", "_sliding_window_pattern"):
            return layers - layers // pattern
        if self.model_type in ("gemma2", "gpt_oss"):
            return layers - layers // 2
        if self.model_type.startswith("qwen"):  # off by default; on, it begins at a layer
            on = self.values.get("use_sliding_window") is True
            return max(layers - self.find_count("max_window_layers"), 0) if on else 0
        return layers

    def read_mixture(self, experts: int, layers: int) -> dict[str, int]:
        """Return the architecture's fields of a mixture of `experts`; raises UsageError if one is missing.

        Dense are layers before the first with experts, those listed as such, and those between its steps.
        """
        each = self.find_count("moe_intermediate_size") or self.require_count("intermediate_size")
        shared = self.find_count("shared_expert_intermediate_size")
        step = self.find_count("decoder_sparse_step") or 1
        first = self.find_count("first_k_dense_replace")
        only = untrusted.read_list(self.values.get("mlp_only_layers"))
        dense = sum(layer < first or layer in only or (layer + 1) % step != 0 for layer in range(layers))
        return {
            "experts": experts,
            "experts_per_token": self.require_count("num_experts_per_tok", "experts_per_token", "moe_topk"),
            "expert_intermediate": each,
            "shared_intermediate": shared or each * self.find_count("n_shared_experts", "num_shared_experts"),
            "dense_layers": dense,
        }

    def read_latent(self) -> Latent | None:
        """Return the sizes of latent attention; None without kv_lora_rank.

        Raises UsageError without the sizes of a head; without q_lora_rank `query_rank` is 0.
        """
        if not self.find_count("kv_lora_rank"):
            return None
        return Latent(
            query_rank=self.find_count("q_lora_rank"),
            rank=self.find_count("kv_lora_rank"),
            nope=self.require_count("qk_nope_head_dim"),
            rope=self.require_count("qk_rope_head_dim"),
            value=self.require_count("v_head_dim"),
        )


# A name may go on after the model's with how it was tuned, and how its weights are stored.
_TUNED = re.compile(r"(?:instruct|chat|it|base|hf|thinking|reasoning|\d{4}|v\d+(?:\.\d+)*|preview)", re.I)
_STORED = re.compile(
    r"(?:bf16|fp16|fp32|fp8|fp4|nvfp4|mxfp4|mxfp8|awq|gptq|autoround|bnb|gguf|int4|int8|w\d+a\d+|[48]bit|quantized(?:\.w\d+a\d+)?"
    r"|dynamic|block|marlin|qat|q4_0|g\d+|gs\d+|i?q\d\w*|tq\d\w*|(?:w\d+a\d+|[48]bit)\.?\w*|sym|asym|quant)",
    re.I,
)


class Named(msgspec.Struct, frozen=True):
    """A model found by its name: its row of the table, and the words for how its weights are stored."""

    key: str
    quantization: str  # as AWQ, Int4-W4A16, GGUF-Q4_K_M; "" where the name has none


class _ModelRow(BaseModel, extra="forbid"):
    hub: str
    parameters_b: float
    config: dict[str, Any]
    active_b: float = 0.0
    names: list[str] = []
    stored: str = ""
    note: str = ""


def find_architecture(model: str) -> Architecture | None:
    """Find the shape of a checkpoint by its name or path; None if the table lacks it."""
    match = find_model(model)
    return None if match is None else list_models()[match.key]


def find_model(model: str) -> Named | None:
    """Find the row of a checkpoint's name, and the quantization in the name; None if the table lacks it.

    `/models/Qwen3-Coder-30B-A3B-Instruct-AWQ-8bit` is Qwen3-Coder-30B-A3B and AWQ-8bit. Only words of tuning
    and storing may follow the model's name: with any other word it is another model.
    """
    base, quantization = split_name(model)
    name = re.sub(r"\.(gguf|safetensors)$", "", base, flags=re.IGNORECASE).replace(":", "-")
    name = f"{name}-{quantization}" if quantization else name
    parts = name.split("-")
    for count in range(len(parts), 0, -1):
        key = _index_names().get("-".join(parts[:count]).lower())
        rest = parts[count:]
        if key is not None and all(_TUNED.fullmatch(part) or _STORED.fullmatch(part) for part in rest):
            return Named(key, "-".join(part for part in rest if _STORED.fullmatch(part)))
    return None


def find_suffix(model: str) -> str:
    """Return the words at the end of a name for how weights are stored; "" if there are none."""
    if (match := find_model(model)) is not None:
        return match.quantization
    base, quantization = split_name(model)
    suffixes = [*takewhile(_STORED.fullmatch, reversed(base.split("-")))][::-1]
    return "-".join(filter(None, [*suffixes, quantization]))


@cache
def list_models() -> dict[str, Architecture]:
    """Return every shape by key, in the order of the file."""
    return {
        key: parse_architecture(row.config, f"{row.hub}, config.json") for key, row in read_rows().items()
    }


@cache
def read_rows() -> dict[str, _ModelRow]:
    """Read the table's rows by key."""
    text = resources.files(__package__).joinpath("models.toml").read_text("utf-8")
    return {key: _ModelRow(**row) for key, row in tomllib.loads(text).items()}


@cache
def _index_names() -> dict[str, str]:
    return {
        name.lower(): key
        for key, row in read_rows().items()
        for name in (key, row.hub.split("/")[-1], *row.names)
    }


_SPLIT = re.compile(
    r"(.+?)-(BF16|FP16|(?:NV|MX)?FP[48](?:-dynamic)?|AWQ(?:-(?:INT4|4bit))?|GPTQ(?:-(?:Int[48]|[48]bit))?"
    r"|INT[48]|W\d+A\d+)",
    re.IGNORECASE,
)
# A GGUF file, which may be one of several, or a repository of such files with the kind that is meant.
_GGUF_FILE = re.compile(
    r"(.+?)(?:[-._]((?:UD-)?(?:I?Q\d|TQ\d|MXFP4|BF16|F16|F32)\w*?))?(?:-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE
)
_GGUF_HUB = re.compile(r"(.+?)[-_]GGUF(?::([\w-]+))?", re.IGNORECASE)


def split_name(model: str) -> tuple[str, str]:
    """Split a path's or hub name's last part into name and quantization, "" if it has none.

    `/models/Qwen3-8B-FP8` is ("Qwen3-8B", "FP8"), `Qwen/Qwen3-8B` is ("Qwen3-8B", "").
    """
    parts = [part for part in re.split(r"[/\\]", model) if part] or [""]
    cached = next((part for part in parts if part.startswith("models--")), None)  # …/snapshots/<commit>
    name = cached.split("--")[-1] if cached else parts[-1]
    match = _SPLIT.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def split_gguf(model: str) -> tuple[str, str]:
    """Split a name with the kind of a GGUF; any other name as `split_name` does.

    `Qwen3-8B-Q4_K_M.gguf` and `Qwen/Qwen3-8B-GGUF:Q4_K_M` are ("Qwen3-8B", "GGUF-Q4_K_M"). A
    repository without a kind has "GGUF", a file without one "".
    """
    name = re.split(r"[/\\]", model)[-1]
    match = _GGUF_FILE.fullmatch(name) or _GGUF_HUB.fullmatch(name)
    if match is None:
        return split_name(model)
    kind = "-".join(filter(None, ("GGUF", match[2])))
    return match[1], kind if match[2] or not name.lower().endswith(".gguf") else ""
