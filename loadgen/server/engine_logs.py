"""Engine logs: the patterns of the configuration in an engine's log, or in its /server_info.

One table per engine. Of several matches the last counts for words, the largest for sizes: draft models and
the other ranks of a group log theirs in the same words.

A log may be one line of megabytes, so no pattern may scan the same text again from each of its possible
beginnings: a pattern with a gap in it is written as two, `after` and `pattern`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import msgspec

from loadgen.base import untrusted
from loadgen.base.secrecy import hide_secrets

_HEAD_CHARS = 4_000_000  # start-up is at a log's head; a line for each request follows
_MOST_REMARKS = 5
_LONGEST_FLAGS = 8192  # characters; about the length of SGLang's arguments, all of which it logs
_MOST_ITEMS = 1000  # of a list in an answer
_GIB = 2**30
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_ABSENT = object()

Value = Callable[[str], Any]


def _drop_repeats(values: list[Any]) -> Any:
    return " + ".join(dict.fromkeys(values))


class _Row(msgspec.Struct, frozen=True):
    """A pattern for one field, whose value is made from the first group that matched.

    With `after` the pattern is searched once in what follows the first `after` of a line, to the end of
    that line, or of `lines` lines.
    """

    field: str
    pattern: str
    value: Value = str
    pick: Callable[[list[Any]], Any] = itemgetter(-1)
    after: str = ""
    lines: int = 1

    def read(self, log: str) -> dict[str, Any]:
        """The field with its value; {} where the log does not have it."""
        texts = (next(filter(None, match.groups()), "") for match in self._matches(log))
        values = [value for text in texts if not is_empty(value := self.value(text))]
        return {self.field: self.pick(values)} if values else {}

    def _matches(self, log: str) -> Iterator[re.Match[str]]:
        if not self.after:
            yield from re.finditer(self.pattern, log)
            return
        pattern, after, at = re.compile(self.pattern), re.compile(self.after), 0
        while (start := after.search(log, at)) is not None:
            at = end = _find_line_end(log, start.end())
            for _ in range(self.lines - 1):
                end = _find_line_end(log, end + 1)
            if (match := pattern.search(log[start.end() : end])) is not None:
                yield match


def _find_line_end(log: str, at: int) -> int:
    end = log.find("\n", at)
    return len(log) if end < 0 else end


def is_empty(value: object) -> bool:
    """Whether a value is empty: None, "" or ()."""
    return value is None or value in ("", ())


def _bound_value(field: str, value: object) -> object:
    """A field's value within bounds; None or "" if it is out of them."""
    if isinstance(value, str):
        return untrusted.read_text(value, _LONGEST_FLAGS if field == "flags" else untrusted.LONGEST)
    return untrusted.read_number(value) if isinstance(value, float) else untrusted.read_count(value)


def _bound_values(values: Mapping[str, object]) -> dict[str, Any]:
    kept = ((field, _bound_value(field, value)) for field, value in values.items())
    return {field: value for field, value in kept if not is_empty(value)}


# From the text of a match to the value of the field.


def _read_word(text: str) -> str:
    """A word without quotes and `torch.`; "" for None and auto."""
    word = text.strip("'\" ").removeprefix("torch.")
    return "" if word in ("None", "auto", "") else word


def _read_method(text: str) -> str:
    return _read_word(text) or "none"


def _read_kv_dtype(text: str) -> str:
    return text.strip("'\" ").removeprefix("torch.")


def _read_backend(text: str) -> str:
    name = _read_word(text).rpartition(".")[2].upper().replace(" ", "_")
    return {"FLASH_ATTENTION": "FLASH_ATTN"}.get(name, name)


def _map_words(words: Mapping[str, str], other: str | None = None) -> Value:
    """Maps some words; any other is `other`, or itself."""
    return lambda text: words.get(text, text if other is None else other)


switch = _map_words({"True": "on", "False": "off"}, "")
_opposite, _off_if_true = _map_words({"True": "off", "False": "on"}, ""), _map_words({"True": "off"}, "")
_on, _off = _map_words({}, "on"), _map_words({}, "off")
_graph_mode, _chunk = _map_words({"NONE": "off", "disabled": "off"}), _map_words({"-1": "off", "None": "off"})


def _read_sizes(text: str) -> str:
    sizes = [size for word in re.findall(r"\d+", text) if (size := untrusted.read_digits(word)) is not None]
    return f"{len(sizes)} sizes up to {max(sizes)}" if sizes else ""


def _read_flags(text: str) -> str:
    """Without secrets; cut at a word's end where too long, as half a secret would not be recognized."""
    flags = _read_word(text)
    if len(flags) > _LONGEST_FLAGS:
        flags = flags[:_LONGEST_FLAGS]
        flags = flags[: max(flags.rfind(sign) for sign in " ,\n\t") + 1]
    return hide_secrets(flags)


def _read_kernel(text: str) -> str:
    return text if text.find("Kernel") > 0 else ""


def read_count(text: str) -> int | None:
    """A whole number, with or without commas."""
    return untrusted.read_digits(text.replace(",", ""))


def _read_seconds(text: str) -> float | None:
    seconds = untrusted.read_number(text)
    return None if seconds is None else round(seconds, 2)


def _read_numbers(text: str) -> list[float]:
    words = re.findall(r"\d+\.?\d*", text[:_LONGEST_FLAGS])
    return [number for word in words if (number := untrusted.read_number(word)) is not None]


def _read_gib(text: str) -> int | None:
    """Bytes of GiB; both engines also write GB and mean 2³⁰. A difference of memory may be negative."""
    size = sum(_read_numbers(text))
    return round(size * _GIB) if size > 0 and not text.startswith("-") else None


def _read_blocks(text: str) -> int | None:
    """KV tokens of `BLOCKS … for LENGTH tokens per request: TIMESx`, without the tokens per block."""
    numbers = _read_numbers(text)
    if len(numbers) < 3 or not numbers[0]:
        return None
    blocks, (length, times) = numbers[0], numbers[-2:]
    return round(blocks * round(length * times / blocks))


def _read_speculative(text: str) -> str:
    """`method, N tokens` of vLLM's SpeculativeConfig or SGLang's arguments."""
    method = re.search(r"(?:method|algorithm)(?:=|': )['\"]?([\w.-]+)", text)
    tokens = re.search(r"(?:num_spec_tokens|num_speculative_tokens|num_draft_tokens)(?:=|': )(\d+)", text)
    name = "on" if method is None or method[1] == "None" else method[1]
    return f"{name}, {tokens[1]} tokens" if tokens else name if name != "on" else ""


_VLLM = r"Initializing an? (?:V[01] )?LLM engine "
_SGLANG = r"server_args=(?:ServerArgs\(|\{)"
_LOADED, _ALLOCATED = r"Load weight end\.", r"KV [Cc]ache (?:is )?allocated\."


def _make_vllm_row(field: str, name: str, value: Value) -> _Row:
    """A setting in the line in which vLLM logs its configuration."""
    return _Row(field, rf"\b{name}=([^,\s)]+)", value, after=_VLLM)


def _make_sglang_row(field: str, name: str, value: Value) -> _Row:
    """One of SGLang's arguments, logged as a call or, in 0.5.23, as a dict: {'tp_size': 1, …}."""
    return _Row(field, rf"\b{name}(?:=|': )([^,)}}]+)", value, after=_SGLANG)


_SIZES = r"['\"]?: ?\[([\d, ]+)\]"
_SOURCE = r"(?:cuda|rocm|xpu|cpu|tpu|selector|interface)\.py:\d+\] "
_REMARK = (
    r"(?m)(?:^|\] )([^\]\n]*(?:"
    r"does not have native support for|is not fully optimized yet|so forcing |simulated weight|"
    r"weight-only via FP4 Marlin|Casting torch\.\w+ to |Performance might be sub-optimal)[^\n]*)"
)
_SHARED = (
    _Row("kernel", r"Using ([\w-]+) for (?:NVFP4|MX\w+) GEMM|Using (\w+) kernel\b", pick=_drop_repeats),
    _Row("kernel", r"(?:Using|Selected) (\w+) for ", _read_kernel, _drop_repeats),
    _Row("moe_kernel", r"Using (\w+MoEMethod)\b", pick=_drop_repeats),
    _Row("moe_kernel", r"Using '?([\w.-]+)'? (?:[\w.-]+ )?M[oO]E backend", pick=_drop_repeats),
)
_TABLES = {
    "vLLM": (
        _Row("version", r"version (\d+\.\d\S*)|LLM engine \(v([^()\n]+)\) with config"),
        _Row("flags", r"\A(\{.*\})", _read_flags, after=r"non-default args: (?=\{)"),
        _make_vllm_row("quantization", "quantization", _read_method),
        _Row("attention_backend", rf"{_SOURCE}Using ([\w. ]+?) backend", _read_backend),
        _Row("attention_backend", r"Using (\w+) attention backend out of", _read_backend, _drop_repeats),
        _make_vllm_row("dtype", "dtype", _read_word),
        _Row("kv_cache_dtype", r"Using (\w+) data type to store kv cache"),
        _make_vllm_row("kv_cache_dtype", "kv_cache_dtype", _read_kv_dtype),
        _Row("cuda_graphs", r"(Graph capturing finished) in", _on),
        _make_vllm_row("cuda_graphs", "enforce_eager", _off_if_true),
        _Row("cuda_graphs", r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", _graph_mode),
        _Row("cuda_graphs", r"Overriding cudagraph_mode(?: from \w+)? to (\w+)", _graph_mode),
        _Row("cuda_graphs", r"(Skipping (?:encoder and decoder )?CUDA graph capture)", _off),
        _Row("cuda_graph_sizes", rf"cudagraph_capture_sizes{_SIZES}", _read_sizes),
        _Row(
            "speculative",
            r"speculative_config=SpeculativeConfig\(([^)]*)",
            _read_speculative,
            after="Initializing ",
        ),
        _make_vllm_row("prefix_caching", "enable_prefix_caching", switch),
        _make_vllm_row("chunked_prefill", "(?:enable_chunked_prefill|chunked_prefill_enabled)", switch),
        _make_vllm_row("tensor_parallel", "tensor_parallel_size", read_count),
        _make_vllm_row("max_model_len", "max_seq_len", read_count),
        _Row("weights_bytes", r"(?:Model loading|Loading model weights) took ([\d.]+) Gi?B", _read_gib, max),
        _Row("kv_capacity_tokens", r"KV cache size: ([\d,]+) tokens", read_count),
        _Row(
            "kv_capacity_tokens",
            r"(?s)\A(\d+.*?tokens per request: [\d.]+)x",
            _read_blocks,
            after=r"# (?:GPU|cuda) blocks: (?=\d)",
            lines=2,
        ),
        _Row(
            "kv_bytes",
            r"(?:Available KV cache memory:|reserved for KV Cache is) ([\d.]+) ?GiB",
            _read_gib,
            max,
        ),
        _Row("kv_bytes", r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache", _read_gib, max),
        _Row("load_s", r"Loading weights took ([\d.]+) seconds", _read_seconds, max),
        _Row(
            "load_s", r"Model loading took [\d.]+ Gi?B(?: memory)? and ([\d.]+) seconds", _read_seconds, max
        ),
    ),
    "SGLang": (
        _make_sglang_row("quantization", "quantization", _read_word),
        _Row("quantization", r"\bquant=([\w-]+)", after=_LOADED),
        _make_sglang_row("attention_backend", "attention_backend", _read_word),
        _Row("attention_backend", r"Attention backend not specified\. Use (\w+) backend by default"),
        _Row(
            "attention_backend", r"\A(.+)\.", after="Using hybrid attention backend for decode and prefill: "
        ),
        _Row("dtype", r"\bdtype=([\w.]+)", _read_word, after=_LOADED),
        _make_sglang_row("kv_cache_dtype", "kv_cache_dtype", _read_kv_dtype),
        _Row("kv_cache_dtype", r"Using KV cache dtype: ([\w.]+)", _read_word),
        _Row("kv_cache_dtype", r"KV Cache is allocated\. dtype: ([\w.]+),", _read_word),
        _Row("cuda_graphs", r"\A[\w ]*?((?:cuda|CUDA) graph begin)", _on, after="Capture "),
        _make_sglang_row("cuda_graphs", "disable_cuda_graph", _off_if_true),
        _Row(
            "cuda_graph_sizes",
            r"Capture cuda graph bs \[([\d, ]+)\]|graph end\. bs=\[([\d, ]+)\]",
            _read_sizes,
        ),
        _Row("speculative", r"\bspeculative_(algorithm\b.*)", _read_speculative, after="server_args="),
        _make_sglang_row("prefix_caching", "disable_radix_cache", _opposite),
        _Row("chunked_prefill", r"chunked_prefill_size=(-?\w+)", _chunk, after="max_total_num_tokens="),
        _make_sglang_row("tensor_parallel", "tp_size", read_count),
        _Row("max_model_len", r"context_len=(\d+)", read_count, after="max_total_num_tokens="),
        _Row("weights_bytes", r"mem usage=(-?[\d.]+) GB", _read_gib, max, _LOADED),
        _Row("kv_capacity_tokens", r"#tokens: (\d+)", read_count, max, _ALLOCATED),
        _Row("kv_capacity_tokens", r"max_total_num_tokens=(\d+),", read_count),
        _Row("kv_bytes", r"(K size: [\d.]+ GB, V size: [\d.]+) GB", _read_gib, max, _ALLOCATED),
        _Row("kv_bytes", r", KV size: ([\d.]+) GB", _read_gib, max, _ALLOCATED),
        _Row("load_s", r"Load weight end\. elapsed=([\d.]+) s", _read_seconds, max),
    ),
}


def read_log(log: str) -> dict[str, Any]:
    """The fields of `EngineConfig` in a server's log; empty for an unknown engine."""
    text = _COLOURS.sub("", log[:_HEAD_CHARS])
    values: dict[str, Any] = {}
    for table in (_SHARED, *_TABLES.values()):
        for pattern in table:
            values |= pattern.read(text)
    if lines := dict.fromkeys(match[1].strip() for match in re.finditer(_REMARK, text)):
        remarks = tuple(untrusted.read_text(hide_secrets(line[: 2 * untrusted.LONGEST])) for line in lines)
        return {**_bound_values(values), "remarks": remarks[:_MOST_REMARKS]}
    return _bound_values(values)


# The same fields in /server_info (llama.cpp: /props): SGLang's is flat, vLLM's (in its dev mode) is nested.
_INFO: tuple[tuple[str, str, Value], ...] = (
    ("version", "version", _read_word),
    ("flags", "launch_command", _read_flags),
    ("quantization", "quantization", _read_word),
    ("attention_backend", "attention_backend", _read_word),
    ("dtype", "dtype", _read_word),
    ("kv_cache_dtype", "kv_cache_dtype", _read_kv_dtype),
    ("cuda_graphs", "disable_cuda_graph", _opposite),
    ("cuda_graphs", "cuda_graph_config.decode.backend", _graph_mode),
    ("cuda_graph_sizes", "internal_states.0.decode_cuda_graph_bs", _read_sizes),
    ("prefix_caching", "disable_radix_cache", _opposite),
    ("chunked_prefill", "chunked_prefill_size", _chunk),
    ("tensor_parallel", "tp_size", read_count),
    ("max_model_len", "context_length", read_count),
    ("weights_bytes", "internal_states.0.memory_usage.weight", _read_gib),
    ("kv_capacity_tokens", "max_total_num_tokens", read_count),
    ("kv_bytes", "internal_states.0.memory_usage.kvcache", _read_gib),
    ("load_s", "startup_time.load_weight", _read_seconds),
    ("quantization", "vllm_config.model_config.quantization", _read_method),
    ("attention_backend", "vllm_config.attention_config.backend", _read_backend),
    ("dtype", "vllm_config.model_config.dtype", _read_word),
    ("kv_cache_dtype", "vllm_config.cache_config.cache_dtype", _read_kv_dtype),
    ("cuda_graphs", "vllm_config.model_config.enforce_eager", _off_if_true),
    ("prefix_caching", "vllm_config.cache_config.enable_prefix_caching", switch),
    ("chunked_prefill", "vllm_config.scheduler_config.enable_chunked_prefill", switch),
    ("tensor_parallel", "vllm_config.parallel_config.tensor_parallel_size", read_count),
    ("max_model_len", "vllm_config.model_config.max_model_len", read_count),
    ("kv_capacity_tokens", "vllm_config.cache_config.kv_cache_size_tokens", read_count),
    # llama.cpp's /props.
    ("version", "build_info", _read_word),
    ("quantization", "model_ftype", "GGUF {}".format),
    ("max_model_len", "default_generation_settings.n_ctx", read_count),
    ("max_running", "total_slots", read_count),
)


def read_answer(info: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `EngineConfig` in an answer of /server_info."""
    values: dict[str, Any] = {}
    for name, path, value in _INFO:
        item = _find_value(info, path)
        if item is not _ABSENT and not is_empty(kept := value(_format_value(item))):
            values[name] = kept
    for prefix, table in (("speculative_", info), ("", _find_value(info, "vllm_config.speculative_config"))):
        if isinstance(table, Mapping):
            pairs = (f"{k.removeprefix(prefix)}={_format_value(v)}" for k, v in table.items() if prefix in k)
            if speculative := _read_speculative(" ".join(pairs)):
                values["speculative"] = speculative
    return _bound_values(values)


def _format_value(value: object) -> str:
    """A JSON value as a log would print it; "" for nested values, which are not needed."""
    if isinstance(value, list):
        return ", ".join(_format_value(item) for item in value[:_MOST_ITEMS] if not isinstance(item, list))
    return "" if isinstance(value, dict) else str(value)


def _find_value(info: object, path: str) -> object:
    """The value at a dotted path."""
    for step in path.split("."):
        if isinstance(info, list) and step.isdecimal() and int(step) < len(info):
            info = info[int(step)]
        elif isinstance(info, Mapping) and step in info:
            info = info[step]
        else:
            return _ABSENT
    return info
