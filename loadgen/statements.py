"""Statements: the words in which engines say, in logs and answers, what they run.

One table an engine; a new engine is a new table. Of words the last statement holds. Of sizes the
largest does: draft models and the other ranks of a group state theirs in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from loadgen.environment import hide

_HEAD_CHARS = 4_000_000  # start-up is at a log's head; behind it a line for each request
_MOST_REMARKS = 5
_GIB = 2**30
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_ABSENT = object()

Value = Callable[[Any], Any]


def _last(found: list[Any]) -> Any:
    return found[-1]


def _distinct(found: list[Any]) -> Any:
    return " + ".join(dict.fromkeys(found))


class _Statement(msgspec.Struct, frozen=True):
    """What one wording says: a field, and how its value is made from the wording's first group."""

    field: str
    pattern: str
    value: Value = str
    pick: Callable[[list[Any]], Any] = _last

    def read(self, log: str) -> dict[str, Any]:
        """The field's value, where the log holds the wording and it says anything."""
        texts = (next((one for one in match.groups() if one), "") for match in re.finditer(self.pattern, log))
        found = [value for text in texts if not silent(value := self.value(text))]
        return {self.field: self.pick(found)} if found else {}


def silent(value: object) -> bool:
    """Whether a value says nothing."""
    return value is None or value in ("", ())


# From what a statement gives to what is kept.


def _word(said: object) -> str:
    """A word without quotes and `torch.`; nothing where it is None or left to the engine."""
    word = str(said).strip("'\" ").removeprefix("torch.")
    return "" if word in ("None", "auto", "") else word


def _method(said: object) -> str:
    return _word(said) or "none"


def _kv_dtype(said: object) -> str:
    return str(said).strip("'\" ").removeprefix("torch.")


def _backend(said: object) -> str:
    name = _word(said).rpartition(".")[2].upper().replace(" ", "_")
    return {"FLASH_ATTENTION": "FLASH_ATTN"}.get(name, name)


def switch(said: object) -> str:
    """`on` or `off`, where it is one."""
    return {"True": "on", "False": "off"}.get(str(said), "")


def _opposite(said: object) -> str:
    return {"True": "off", "False": "on"}.get(str(said), "")


def _off(said: object) -> str:
    return "off" if said else ""


def _on(said: object) -> str:
    return "on" if said else ""


def _off_if_true(said: object) -> str:
    return "off" if str(said) == "True" else ""


def _graph_mode(said: object) -> str:
    return "off" if said in ("NONE", "disabled") else str(said)


def _sizes(said: object) -> str:
    sizes = [int(one) for one in re.findall(r"\d+", str(said))]
    return f"{len(sizes)} sizes up to {max(sizes)}" if sizes else ""


def _chunk(said: object) -> str:
    return "off" if str(said) in ("-1", "None") else str(said)


def count(said: object) -> int | None:
    """A whole number, whatever its commas."""
    digits = str(said).replace(",", "")
    return int(digits) if digits.isdecimal() else None


def _seconds(said: object) -> float:
    return round(float(str(said)), 2)


def _gib(said: object) -> int | None:
    """Bytes of GiB; both engines also write GB and mean 2³⁰."""
    size = sum(float(one) for one in re.findall(r"-?\d+\.?\d*", str(said)))
    return round(size * _GIB) if size > 0 else None


def _blocks(said: object) -> int | None:
    """Tokens of `BLOCKS … for LENGTH tokens per request: TIMESx`, which leaves out a block's tokens."""
    numbers = [float(one) for one in re.findall(r"\d+\.?\d*", str(said))]
    blocks, (length, times) = numbers[0], numbers[-2:]
    return round(blocks * round(length * times / blocks)) if blocks else None


def _speculative(said: object) -> str:
    """`method, N tokens` of vLLM's SpeculativeConfig or SGLang's arguments."""
    method = re.search(r"(?:method|algorithm)(?:=|': )['\"]?([\w.-]+)", str(said))
    tokens = re.search(
        r"(?:num_spec_tokens|num_speculative_tokens|num_draft_tokens)(?:=|': )(\d+)", str(said)
    )
    name = "on" if method is None or method[1] == "None" else method[1]
    return f"{name}, {tokens[1]} tokens" if tokens else name if name != "on" else ""


def _vllm(name: str) -> str:
    """A setting in the line in which vLLM shows its configuration."""
    return rf"Initializing an? (?:V[01] )?LLM engine .*?\b{name}=([^,\s)]+)"


def _sglang(name: str) -> str:
    """One of its arguments, which it shows as a call, in 0.5.23 as a table: {'tp_size': 1, …}."""
    return rf"server_args=(?:ServerArgs\(|\{{).*?\b{name}(?:=|': )([^,)}}]+)"


_SIZES = r"['\"]?: ?\[([\d, ]+)\]"
_SOURCE = r"(?:cuda|rocm|xpu|cpu|tpu|selector|interface)\.py:\d+\] "
_REMARK = (
    r"(?m)(?:^|\] )([^\]\n]*(?:"
    r"does not have native support for|is not fully optimized yet|so forcing |simulated weight|"
    r"weight-only via FP4 Marlin|Casting torch\.\w+ to |Performance might be sub-optimal)[^\n]*)"
)
_SHARED = (
    _Statement("kernel", r"Using ([\w-]+) for (?:NVFP4|MX\w+) GEMM|Using (\w+) kernel\b", pick=_distinct),
    _Statement("kernel", r"(?:Using|Selected) (\w+Kernel\w*) for ", pick=_distinct),
    _Statement("moe_kernel", r"Using (\w+MoEMethod)\b", pick=_distinct),
    _Statement("moe_kernel", r"Using '?([\w.-]+)'? (?:[\w.-]+ )?M[oO]E backend", pick=_distinct),
)
_TABLES = {
    "vLLM": (
        _Statement("version", r"version (\d+\.\d\S*)|LLM engine \(v([^)]+)\) with config"),
        _Statement("flags", r"non-default args: (\{.*\})", hide),
        _Statement("quantization", _vllm("quantization"), _method),
        _Statement("attention_backend", rf"{_SOURCE}Using ([\w. ]+?) backend", _backend),
        _Statement("attention_backend", r"Using (\w+) attention backend out of", _backend, _distinct),
        _Statement("dtype", _vllm("dtype"), _word),
        _Statement("kv_cache_dtype", r"Using (\w+) data type to store kv cache"),
        _Statement("kv_cache_dtype", _vllm("kv_cache_dtype"), _kv_dtype),
        _Statement("cuda_graphs", r"(Graph capturing finished) in", _on),
        _Statement("cuda_graphs", _vllm("enforce_eager"), _off_if_true),
        _Statement("cuda_graphs", r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", _graph_mode),
        _Statement("cuda_graphs", r"Overriding cudagraph_mode(?: from \w+)? to (\w+)", _graph_mode),
        _Statement("cuda_graphs", r"(Skipping (?:encoder and decoder )?CUDA graph capture)", _off),
        _Statement("cuda_graph_sizes", rf"cudagraph_capture_sizes{_SIZES}", _sizes),
        _Statement(
            "speculative", r"Initializing .*?speculative_config=SpeculativeConfig\((.*?)\)", _speculative
        ),
        _Statement("prefix_caching", _vllm("enable_prefix_caching"), switch),
        _Statement("chunked_prefill", _vllm("(?:enable_chunked_prefill|chunked_prefill_enabled)"), switch),
        _Statement("tensor_parallel", _vllm("tensor_parallel_size"), count),
        _Statement("max_model_len", _vllm("max_seq_len"), count),
        _Statement("weights_bytes", r"(?:Model loading|Loading model weights) took ([\d.]+) Gi?B", _gib, max),
        _Statement("kv_capacity_tokens", r"KV cache size: ([\d,]+) tokens", count),
        _Statement(
            "kv_capacity_tokens", r"# (?:GPU|cuda) blocks: (\d+.*\n.*?tokens per request: [\d.]+)x", _blocks
        ),
        _Statement(
            "kv_bytes", r"(?:Available KV cache memory:|reserved for KV Cache is) ([\d.]+) ?GiB", _gib, max
        ),
        _Statement("kv_bytes", r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache", _gib, max),
        _Statement("load_s", r"Loading weights took ([\d.]+) seconds", _seconds, max),
        _Statement(
            "load_s", r"Model loading took [\d.]+ Gi?B(?: memory)? and ([\d.]+) seconds", _seconds, max
        ),
    ),
    "SGLang": (
        _Statement("quantization", _sglang("quantization"), _word),
        _Statement("quantization", r"Load weight end\..*?\bquant=([\w-]+)"),
        _Statement("attention_backend", _sglang("attention_backend"), _word),
        _Statement("attention_backend", r"Attention backend not specified\. Use (\w+) backend by default"),
        _Statement("attention_backend", r"Using hybrid attention backend for decode and prefill: (.+)\."),
        _Statement("dtype", r"Load weight end\..*?\bdtype=([\w.]+)", _word),
        _Statement("kv_cache_dtype", _sglang("kv_cache_dtype"), _kv_dtype),
        _Statement("kv_cache_dtype", r"Using KV cache dtype: ([\w.]+)", _word),
        _Statement("kv_cache_dtype", r"KV Cache is allocated\. dtype: ([\w.]+),", _word),
        _Statement("cuda_graphs", r"(Capture [\w ]*?(?:cuda|CUDA) graph begin)", _on),
        _Statement("cuda_graphs", _sglang("disable_cuda_graph"), _off_if_true),
        _Statement(
            "cuda_graph_sizes", r"Capture cuda graph bs \[([\d, ]+)\]|graph end\. bs=\[([\d, ]+)\]", _sizes
        ),
        _Statement("speculative", r"server_args=.*?\bspeculative_(algorithm\b.*)", _speculative),
        _Statement("prefix_caching", _sglang("disable_radix_cache"), _opposite),
        _Statement("chunked_prefill", r"max_total_num_tokens=.*?chunked_prefill_size=(-?\w+)", _chunk),
        _Statement("tensor_parallel", _sglang("tp_size"), count),
        _Statement("max_model_len", r"max_total_num_tokens=.*?context_len=(\d+)", count),
        _Statement("weights_bytes", r"Load weight end\..*?mem usage=(-?[\d.]+) GB", _gib, max),
        _Statement("kv_capacity_tokens", r"KV [Cc]ache (?:is )?allocated\..*?#tokens: (\d+)", count, max),
        _Statement("kv_capacity_tokens", r"max_total_num_tokens=(\d+),", count),
        _Statement(
            "kv_bytes", r"KV [Cc]ache (?:is )?allocated\..*?(K size: .*? GB, V size: .*?) GB", _gib, max
        ),
        _Statement("kv_bytes", r"KV [Cc]ache (?:is )?allocated\..*?, KV size: ([\d.]+) GB", _gib, max),
        _Statement("load_s", r"Load weight end\. elapsed=([\d.]+) s", _seconds, max),
    ),
}


def from_log(log: str) -> dict[str, Any]:
    """The fields of `AsRun` that a server's log states; none of a log of no known engine."""
    text = _COLOURS.sub("", log[:_HEAD_CHARS])
    values: dict[str, Any] = {}
    for table in (_SHARED, *_TABLES.values()):
        for statement in table:
            values |= statement.read(text)
    if said := dict.fromkeys(match[1].strip() for match in re.finditer(_REMARK, text)):
        values["remarks"] = tuple(hide(one) for one in said)[:_MOST_REMARKS]
    return values


# Where an engine's own answer says it: SGLang's /server_info is flat, vLLM's (in its dev mode) is nested.
_INFO: tuple[tuple[str, str, Value], ...] = (
    ("version", "version", _word),
    ("flags", "launch_command", lambda said: hide(_word(said))),
    ("quantization", "quantization", _word),
    ("attention_backend", "attention_backend", _word),
    ("dtype", "dtype", _word),
    ("kv_cache_dtype", "kv_cache_dtype", _kv_dtype),
    ("cuda_graphs", "disable_cuda_graph", _opposite),
    ("cuda_graphs", "cuda_graph_config.decode.backend", _graph_mode),
    ("cuda_graph_sizes", "internal_states.0.decode_cuda_graph_bs", _sizes),
    ("prefix_caching", "disable_radix_cache", _opposite),
    ("chunked_prefill", "chunked_prefill_size", _chunk),
    ("tensor_parallel", "tp_size", count),
    ("max_model_len", "context_length", count),
    ("weights_bytes", "internal_states.0.memory_usage.weight", _gib),
    ("kv_capacity_tokens", "max_total_num_tokens", count),
    ("kv_bytes", "internal_states.0.memory_usage.kvcache", _gib),
    ("load_s", "startup_time.load_weight", _seconds),
    ("quantization", "vllm_config.model_config.quantization", _method),
    ("attention_backend", "vllm_config.attention_config.backend", _backend),
    ("dtype", "vllm_config.model_config.dtype", _word),
    ("kv_cache_dtype", "vllm_config.cache_config.cache_dtype", _kv_dtype),
    ("cuda_graphs", "vllm_config.model_config.enforce_eager", _off_if_true),
    ("prefix_caching", "vllm_config.cache_config.enable_prefix_caching", switch),
    ("chunked_prefill", "vllm_config.scheduler_config.enable_chunked_prefill", switch),
    ("tensor_parallel", "vllm_config.parallel_config.tensor_parallel_size", count),
    ("max_model_len", "vllm_config.model_config.max_model_len", count),
    ("kv_capacity_tokens", "vllm_config.cache_config.kv_cache_size_tokens", count),
)


def from_answer(info: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `AsRun` that an answer of /server_info holds."""
    values: dict[str, Any] = {}
    for name, path, value in _INFO:
        found = _at(info, path)
        if found is not _ABSENT and not silent(kept := value(found)):
            values[name] = kept
    for prefix, place in (("speculative_", info), ("", _at(info, "vllm_config.speculative_config"))):
        if isinstance(place, Mapping):
            pairs = (f"{name.removeprefix(prefix)}={said}" for name, said in place.items() if prefix in name)
            values |= {"speculative": said} if (said := _speculative(" ".join(pairs))) else {}
    return values


def _at(info: object, path: str) -> object:
    """What stands at a dotted path."""
    for step in path.split("."):
        if isinstance(info, list) and step.isdecimal() and int(step) < len(info):
            info = info[int(step)]
        elif isinstance(info, Mapping) and step in info:
            info = info[step]
        else:
            return _ABSENT
    return info
