"""Statements: the words in which engines say, in logs and answers, what they run.

One table an engine; a new engine is a new table. Of words the last statement holds. Of sizes the
largest does: draft models and the other ranks of a group state theirs in the same words.

A log may be one line of megabytes: no wording is such that a search for it goes over the same text again
for each of its beginnings. Where something stands between a beginning and what is wanted, they are two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from loadgen.protocol import untrusted
from loadgen.telemetry.environment import hide

_HEAD_CHARS = 4_000_000  # start-up is at a log's head; behind it a line for each request
_MOST_REMARKS = 5
_LONGEST_FLAGS = 8192  # characters; SGLang's arguments, of which it shows all, have about as many
_MOST_ITEMS = 1000  # of a list in an answer
_GIB = 2**30
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_ABSENT = object()

Value = Callable[[Any], Any]


def _last(found: list[Any]) -> Any:
    return found[-1]


def _distinct(found: list[Any]) -> Any:
    return " + ".join(dict.fromkeys(found))


class _Statement(msgspec.Struct, frozen=True):
    """What one wording says: a field, and how its value is made from the wording's first group.

    With `after` the wording is looked for once in what follows the first `after` of a line, to the end of
    that line or of as many as `lines`.
    """

    field: str
    pattern: str
    value: Value = str
    pick: Callable[[list[Any]], Any] = _last
    after: str = ""
    lines: int = 1

    def read(self, log: str) -> dict[str, Any]:
        """The field's value, where the log holds the wording and it says anything."""
        texts = (next((one for one in match.groups() if one), "") for match in self._matches(log))
        found = [value for text in texts if not silent(value := self.value(text))]
        return {self.field: self.pick(found)} if found else {}

    def _matches(self, log: str) -> Iterator[re.Match[str]]:
        if not self.after:
            yield from re.finditer(self.pattern, log)
            return
        wanted, begin, at = re.compile(self.pattern), re.compile(self.after), 0
        while (began := begin.search(log, at)) is not None:
            at = end = _line_end(log, began.end())
            for _ in range(self.lines - 1):
                end = _line_end(log, end + 1)
            if (match := wanted.search(log[began.end() : end])) is not None:
                yield match


def _line_end(log: str, at: int) -> int:
    end = log.find("\n", at)
    return len(log) if end < 0 else end


def silent(value: object) -> bool:
    """Whether a value says nothing."""
    return value is None or value in ("", ())


def _kept(field: str, value: object) -> object:
    """A field's value as it is kept: bounded; None where it says nothing that can be."""
    if isinstance(value, str):
        return untrusted.text(value, _LONGEST_FLAGS if field == "flags" else untrusted.LONGEST)
    return untrusted.number(value) if isinstance(value, float) else untrusted.whole(value)


def _bounded(values: Mapping[str, object]) -> dict[str, Any]:
    kept = {field: _kept(field, value) for field, value in values.items()}
    return {field: value for field, value in kept.items() if not silent(value)}


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
    sizes = [size for one in re.findall(r"\d+", str(said)) if (size := untrusted.digits(one)) is not None]
    return f"{len(sizes)} sizes up to {max(sizes)}" if sizes else ""


def _chunk(said: object) -> str:
    return "off" if str(said) in ("-1", "None") else str(said)


def _flags(said: object) -> str:
    """Without secrets; where there are too many, whole words of them, or half a secret would be left."""
    flags = _word(said)
    if len(flags) > _LONGEST_FLAGS:
        flags = flags[:_LONGEST_FLAGS]
        flags = flags[: max(flags.rfind(sign) for sign in " ,\n\t") + 1]
    return hide(flags)


def _kernel(said: object) -> str:
    return str(said) if str(said).find("Kernel") > 0 else ""


def count(said: object) -> int | None:
    """A whole number, whatever its commas."""
    return untrusted.digits(str(said).replace(",", ""))


def _seconds(said: object) -> float | None:
    seconds = untrusted.number(str(said))
    return None if seconds is None else round(seconds, 2)


def _numbers(said: object) -> list[float]:
    found = re.findall(r"\d+\.?\d*", str(said)[:_LONGEST_FLAGS])
    return [number for one in found if (number := untrusted.number(one)) is not None]


def _gib(said: object) -> int | None:
    """Bytes of GiB; both engines also write GB and mean 2³⁰. A difference of memory may be negative."""
    size = sum(_numbers(said))
    return round(size * _GIB) if size > 0 and not str(said).startswith("-") else None


def _blocks(said: object) -> int | None:
    """Tokens of `BLOCKS … for LENGTH tokens per request: TIMESx`, which leaves out a block's tokens."""
    numbers = _numbers(said)
    if len(numbers) < 3 or not numbers[0]:
        return None
    blocks, (length, times) = numbers[0], numbers[-2:]
    return round(blocks * round(length * times / blocks))


def _speculative(said: object) -> str:
    """`method, N tokens` of vLLM's SpeculativeConfig or SGLang's arguments."""
    method = re.search(r"(?:method|algorithm)(?:=|': )['\"]?([\w.-]+)", str(said))
    tokens = re.search(
        r"(?:num_spec_tokens|num_speculative_tokens|num_draft_tokens)(?:=|': )(\d+)", str(said)
    )
    name = "on" if method is None or method[1] == "None" else method[1]
    return f"{name}, {tokens[1]} tokens" if tokens else name if name != "on" else ""


_VLLM = r"Initializing an? (?:V[01] )?LLM engine "
_SGLANG = r"server_args=(?:ServerArgs\(|\{)"
_LOADED, _ALLOCATED = r"Load weight end\.", r"KV [Cc]ache (?:is )?allocated\."


def _vllm(field: str, name: str, value: Value) -> _Statement:
    """A setting in the line in which vLLM shows its configuration."""
    return _Statement(field, rf"\b{name}=([^,\s)]+)", value, after=_VLLM)


def _sglang(field: str, name: str, value: Value) -> _Statement:
    """One of its arguments, which it shows as a call, in 0.5.23 as a table: {'tp_size': 1, …}."""
    return _Statement(field, rf"\b{name}(?:=|': )([^,)}}]+)", value, after=_SGLANG)


_SIZES = r"['\"]?: ?\[([\d, ]+)\]"
_SOURCE = r"(?:cuda|rocm|xpu|cpu|tpu|selector|interface)\.py:\d+\] "
_REMARK = (
    r"(?m)(?:^|\] )([^\]\n]*(?:"
    r"does not have native support for|is not fully optimized yet|so forcing |simulated weight|"
    r"weight-only via FP4 Marlin|Casting torch\.\w+ to |Performance might be sub-optimal)[^\n]*)"
)
_SHARED = (
    _Statement("kernel", r"Using ([\w-]+) for (?:NVFP4|MX\w+) GEMM|Using (\w+) kernel\b", pick=_distinct),
    _Statement("kernel", r"(?:Using|Selected) (\w+) for ", _kernel, _distinct),
    _Statement("moe_kernel", r"Using (\w+MoEMethod)\b", pick=_distinct),
    _Statement("moe_kernel", r"Using '?([\w.-]+)'? (?:[\w.-]+ )?M[oO]E backend", pick=_distinct),
)
_TABLES = {
    "vLLM": (
        _Statement("version", r"version (\d+\.\d\S*)|LLM engine \(v([^()\n]+)\) with config"),
        _Statement("flags", r"\A(\{.*\})", _flags, after=r"non-default args: (?=\{)"),
        _vllm("quantization", "quantization", _method),
        _Statement("attention_backend", rf"{_SOURCE}Using ([\w. ]+?) backend", _backend),
        _Statement("attention_backend", r"Using (\w+) attention backend out of", _backend, _distinct),
        _vllm("dtype", "dtype", _word),
        _Statement("kv_cache_dtype", r"Using (\w+) data type to store kv cache"),
        _vllm("kv_cache_dtype", "kv_cache_dtype", _kv_dtype),
        _Statement("cuda_graphs", r"(Graph capturing finished) in", _on),
        _vllm("cuda_graphs", "enforce_eager", _off_if_true),
        _Statement("cuda_graphs", r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", _graph_mode),
        _Statement("cuda_graphs", r"Overriding cudagraph_mode(?: from \w+)? to (\w+)", _graph_mode),
        _Statement("cuda_graphs", r"(Skipping (?:encoder and decoder )?CUDA graph capture)", _off),
        _Statement("cuda_graph_sizes", rf"cudagraph_capture_sizes{_SIZES}", _sizes),
        _Statement(
            "speculative",
            r"speculative_config=SpeculativeConfig\(([^)]*)",
            _speculative,
            after="Initializing ",
        ),
        _vllm("prefix_caching", "enable_prefix_caching", switch),
        _vllm("chunked_prefill", "(?:enable_chunked_prefill|chunked_prefill_enabled)", switch),
        _vllm("tensor_parallel", "tensor_parallel_size", count),
        _vllm("max_model_len", "max_seq_len", count),
        _Statement("weights_bytes", r"(?:Model loading|Loading model weights) took ([\d.]+) Gi?B", _gib, max),
        _Statement("kv_capacity_tokens", r"KV cache size: ([\d,]+) tokens", count),
        _Statement(
            "kv_capacity_tokens",
            r"(?s)\A(\d+.*?tokens per request: [\d.]+)x",
            _blocks,
            after=r"# (?:GPU|cuda) blocks: (?=\d)",
            lines=2,
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
        _sglang("quantization", "quantization", _word),
        _Statement("quantization", r"\bquant=([\w-]+)", after=_LOADED),
        _sglang("attention_backend", "attention_backend", _word),
        _Statement("attention_backend", r"Attention backend not specified\. Use (\w+) backend by default"),
        _Statement(
            "attention_backend", r"\A(.+)\.", after="Using hybrid attention backend for decode and prefill: "
        ),
        _Statement("dtype", r"\bdtype=([\w.]+)", _word, after=_LOADED),
        _sglang("kv_cache_dtype", "kv_cache_dtype", _kv_dtype),
        _Statement("kv_cache_dtype", r"Using KV cache dtype: ([\w.]+)", _word),
        _Statement("kv_cache_dtype", r"KV Cache is allocated\. dtype: ([\w.]+),", _word),
        _Statement("cuda_graphs", r"\A[\w ]*?((?:cuda|CUDA) graph begin)", _on, after="Capture "),
        _sglang("cuda_graphs", "disable_cuda_graph", _off_if_true),
        _Statement(
            "cuda_graph_sizes", r"Capture cuda graph bs \[([\d, ]+)\]|graph end\. bs=\[([\d, ]+)\]", _sizes
        ),
        _Statement("speculative", r"\bspeculative_(algorithm\b.*)", _speculative, after="server_args="),
        _sglang("prefix_caching", "disable_radix_cache", _opposite),
        _Statement("chunked_prefill", r"chunked_prefill_size=(-?\w+)", _chunk, after="max_total_num_tokens="),
        _sglang("tensor_parallel", "tp_size", count),
        _Statement("max_model_len", r"context_len=(\d+)", count, after="max_total_num_tokens="),
        _Statement("weights_bytes", r"mem usage=(-?[\d.]+) GB", _gib, max, _LOADED),
        _Statement("kv_capacity_tokens", r"#tokens: (\d+)", count, max, _ALLOCATED),
        _Statement("kv_capacity_tokens", r"max_total_num_tokens=(\d+),", count),
        _Statement("kv_bytes", r"(K size: [\d.]+ GB, V size: [\d.]+) GB", _gib, max, _ALLOCATED),
        _Statement("kv_bytes", r", KV size: ([\d.]+) GB", _gib, max, _ALLOCATED),
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
        remarks = tuple(untrusted.text(hide(one[: 2 * untrusted.LONGEST])) for one in said)[:_MOST_REMARKS]
        return {**_bounded(values), "remarks": remarks}
    return _bounded(values)


# Where an engine's own answer says it: SGLang's /server_info is flat, vLLM's (in its dev mode) is nested.
_INFO: tuple[tuple[str, str, Value], ...] = (
    ("version", "version", _word),
    ("flags", "launch_command", _flags),
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
        if found is not _ABSENT and not silent(kept := value(_said(found))):
            values[name] = kept
    for prefix, place in (("speculative_", info), ("", _at(info, "vllm_config.speculative_config"))):
        if isinstance(place, Mapping):
            told = (
                (name.removeprefix(prefix), _said(said)) for name, said in place.items() if prefix in name
            )
            pairs = (f"{name}={said}" for name, said in told)
            values |= {"speculative": said} if (said := _speculative(" ".join(pairs))) else {}
    return _bounded(values)


def _said(found: object) -> str:
    """What a value of JSON says, as a log would have it; "" of what is nested: nothing that is read is."""
    if isinstance(found, list):
        return ", ".join(_said(one) for one in found[:_MOST_ITEMS] if not isinstance(one, list))
    return "" if isinstance(found, dict) else str(found)


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
