"""As run: what the engine really runs, by its own word, and where that is not what was declared."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from loadgen.endpoint import engine_logs
from loadgen.roofline.checkpoint import Checkpoint

_WIDTH = 80
_UNQUANTIZED = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}
# An engine's word for a method, and how the words of the checkpoints begin that it may run.
_RUNS = {
    "modelopt_fp4": ("NVFP4",),
    "nvfp4": ("NVFP4",),
    "mxfp8": ("MXFP8",),
    "mxfp4": ("MXFP4",),
    "awq": ("AWQ", "AutoRound"),
    "gptq": ("GPTQ", "AutoRound"),
    "bitsandbytes": ("BNB",),
    "gguf": ("GGUF",),
    "fp8": ("FP8",),
    "none": ("BF16", "FP16", "FP32"),
}


class AsRun(BaseModel):
    """What an engine says it runs; an empty word or None where it says nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str = ""
    flags: str = ""  # as it repeats them, without secrets
    quantization: str = ""  # the engine's own word; "none" where it says that there is none
    kernel: str = ""  # of the linear layers
    moe_kernel: str = ""
    attention_backend: str = ""
    dtype: str = ""
    kv_cache_dtype: str = ""
    cuda_graphs: str = ""  # "on", "off", or vLLM's mode
    cuda_graph_sizes: str = ""
    speculative: str = ""
    prefix_caching: str = ""  # "on" or "off"
    chunked_prefill: str = ""  # "on", "off", or SGLang's size
    tensor_parallel: int | None = None
    max_model_len: int | None = None
    weights_bytes: int | None = None  # of one GPU
    kv_capacity_tokens: int | None = None
    kv_bytes: int | None = None  # of one GPU
    load_s: float | None = None
    remarks: tuple[str, ...] = ()  # its own sentences of what runs otherwise than it could


def parse(log: str) -> AsRun:
    """What a server's log says; empty fields where it is of no known engine."""
    return AsRun(**engine_logs.from_log(log))


def from_server_info(info: Mapping[str, Any]) -> AsRun:
    """What a server answers at /server_info (SGLang; vLLM in its dev mode)."""
    return AsRun(**engine_logs.from_answer(info))


def merged(*parts: AsRun) -> AsRun:
    """What several sources say together; the later one wins where two speak."""
    return AsRun(**{name: value for part in parts for name, value in part if not engine_logs.silent(value)})


def render(as_run: AsRun, checkpoint: Checkpoint | None = None) -> list[str]:
    """Lines of at most 80 columns: what runs, how large it is, what differs from the checkpoint's word."""
    lines = [
        ("runs", ", ".join(_runs(as_run, checkpoint))),
        ("model", ", ".join(_model(as_run, checkpoint))),
        *(("differs", one) for one in _differences(as_run, checkpoint)),
        *(("it says", one) for one in as_run.remarks),
    ]
    wrapped = (
        textwrap.wrap(f"{name}: {said}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        for name, said in lines
        if said
    )
    return [line for lines in wrapped for line in lines]


def _runs(as_run: AsRun, checkpoint: Checkpoint | None) -> list[str]:
    graphs = as_run.cuda_graphs + (
        f" ({as_run.cuda_graph_sizes})" if as_run.cuda_graph_sizes and as_run.cuda_graphs != "off" else ""
    )
    said = {
        "attention {}": as_run.attention_backend,
        "MoE by {}": as_run.moe_kernel,
        "KV {}": as_run.kv_cache_dtype,
        "CUDA graphs {}": graphs,
        "prefix caching {}": as_run.prefix_caching,
        "chunked prefill {}": as_run.chunked_prefill,
        "speculative {}": as_run.speculative,
        "{} GPUs in parallel": (as_run.tensor_parallel or 1) > 1 and as_run.tensor_parallel,
    }
    weights = [_weights(as_run, checkpoint)] if as_run != AsRun() else []
    return [*filter(None, weights), *(words.format(value) for words, value in said.items() if value)]


def _weights(as_run: AsRun, checkpoint: Checkpoint | None) -> str:
    """How the weights are multiplied: the checkpoint's word where the engine's method runs it."""
    declared = checkpoint.quantization if checkpoint else ""
    method = as_run.quantization
    if not method:
        word = f"{declared} as declared" if declared else ""
    elif declared and _agree(method, declared):
        word = declared
    else:
        word = _UNQUANTIZED.get(as_run.dtype, "") if method == "none" else method
    return " by ".join(filter(None, (word, as_run.kernel)))


def _model(as_run: AsRun, checkpoint: Checkpoint | None) -> list[str]:
    said = []
    if as_run.weights_bytes:
        each = " on each GPU" if (as_run.tensor_parallel or 1) > 1 else ""
        said.append(f"{_gib(as_run.weights_bytes)} of weights{each}")
    elif checkpoint and checkpoint.weight_bytes:
        said.append(f"{_gib(checkpoint.weight_bytes)} of weights on disk")
    if as_run.kv_capacity_tokens:
        size = f" ({_gib(as_run.kv_bytes)})" if as_run.kv_bytes else ""
        said.append(f"KV cache for {as_run.kv_capacity_tokens:,} tokens{size}")
    if as_run.max_model_len:
        said.append(f"context {as_run.max_model_len:,}")
    return said


def _differences(as_run: AsRun, checkpoint: Checkpoint | None) -> list[str]:
    """Where the engine does not run what the checkpoint declares."""
    if checkpoint is None:
        return []
    found = []
    declared, stored, method = checkpoint.quantization, checkpoint.dtype, as_run.quantization
    if method and declared and not _agree(method, declared):
        ran = "without quantization" if method == "none" else f"as {method}"
        found.append(f"the checkpoint is {declared}, the engine runs it {ran}")
    if stored and as_run.dtype and stored != as_run.dtype:
        found.append(f"the checkpoint is of {stored}, the engine computes in {as_run.dtype}")
    if checkpoint.max_positions and (as_run.max_model_len or 0) > checkpoint.max_positions:
        found.append(
            f"the engine's context of {as_run.max_model_len:,} is beyond the checkpoint's "
            f"{checkpoint.max_positions:,} positions"
        )
    return found


def _agree(method: str, declared: str) -> bool:
    """Whether an engine's method is one that runs what a checkpoint declares."""
    begins = next((begins for word, begins in _RUNS.items() if word in method.lower()), None)
    if begins is None:  # compressed-tensors, modelopt, quark, inc: whatever is quantized
        return not declared.startswith(_RUNS["none"])
    return any(part.startswith(begins) for part in declared.split("+"))


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
