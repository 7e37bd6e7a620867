"""Engine config: the configuration that an engine reports or logs, and how it differs from the checkpoint."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from loadgen.base import untrusted
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import GIB
from loadgen.engines.config_patterns import LONGEST_FLAGS, LogPattern, is_empty, join_distinct, read_kernel
from loadgen.engines.engines import ENGINES
from loadgen.server.checkpoint import UNQUANTIZED, Checkpoint

_MOST_BYTES = 4 << 20  # of its beginning and of its end
_HEAD_CHARS = 4_000_000  # start-up is at a log's head; a line for each request follows
_MOST_REMARKS = 5
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
# Notes with these words name a slower kernel than the checkpoint's format is made for.
_SLOWER = re.compile(
    "does not have native support for|is not fully optimized yet|simulated weight|"
    "weight-only via FP4 Marlin|Performance might be sub-optimal"
)
_REMARK = rf"(?m)(?:^|\] )([^\]\n]*(?:{_SLOWER.pattern}|so forcing |Casting torch\.\w+ to )[^\n]*)"
_STAND_IN, _LOW_BITS = re.compile("marlin|emulat", re.I), re.compile("fp[48]", re.I)
# Lines with which engines begin: a log that is appended to has those of earlier starts too.
_BEGIN = re.compile(r"(?m)^.*(?:vLLM API server version|non-default args: |server_args=)")
# An engine reports no choice of kernel for these weights.
_ONE_KERNEL = ("none", *UNQUANTIZED.values(), "GGUF")
_MOST_PROCESSES = 8  # of an attached server, whose outputs are looked at
_SHARED = (
    LogPattern("kernel", r"Using ([\w-]+) for (?:NVFP4|MX\w+) GEMM|Using (\w+) kernel\b", pick=join_distinct),
    LogPattern("kernel", r"(?:Using|Selected) (\w+) for ", read_kernel, join_distinct),
    LogPattern("moe_kernel", r"Using (\w+MoEMethod)\b", pick=join_distinct),
    LogPattern("moe_kernel", r"Using '?([\w.-]+)'? (?:[\w.-]+ )?M[oO]E backend", pick=join_distinct),
)
# An engine's name of a quantization method, and the prefixes of the checkpoint quantizations that it runs.
_RUNS = {
    "gguf": ("GGUF",),  # first: with the name of its own kind after it
    "modelopt_fp4": ("NVFP4",),
    "nvfp4": ("NVFP4",),
    "mxfp8": ("MXFP8",),
    "mxfp4": ("MXFP4",),
    "awq": ("AWQ", "AutoRound"),
    "gptq": ("GPTQ", "AutoRound"),
    "bitsandbytes": ("BNB",),
    "fp8": ("FP8",),
    "none": ("BF16", "FP16", "FP32"),
}


class EngineConfig(BaseModel, extra="forbid", frozen=True):
    """The configuration that an engine reports; "" or None where it reports nothing."""

    version: str = ""
    flags: str = ""  # as the engine logs them, without secrets
    quantization: str = ""  # in the engine's own terms; "none" where it reports no quantization
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
    max_running: int | None = None  # requests at once
    weights_bytes: int | None = None  # of one GPU
    kv_capacity_tokens: int | None = None
    kv_bytes: int | None = None  # of one GPU
    load_s: float | None = None
    remarks: tuple[str, ...] = ()  # its own warnings about slower or different execution

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The slower kernels that it runs: as it warns, else an FP8 or FP4 format by Marlin or emulated.

        Marlin reads such weights as they are, and computes in 16 bits. Of AWQ and GPTQ it is the fast kernel.
        """
        if warned := tuple(remark for remark in self.remarks if _SLOWER.search(remark)):
            return warned
        named = ((self.kernel, "linear layers"), (self.moe_kernel, "experts"))
        return tuple(
            f"{self.quantization or 'quantized'} {layers} by {kernel}"
            for kernel, layers in named
            if _STAND_IN.search(kernel) and _LOW_BITS.search(f"{self.quantization} {kernel}")
        )


def parse_log(log: str) -> EngineConfig:
    """Parse an engine's configuration and 5 remarks at most from a log's first 4 million characters.

    Each engine's patterns are tried; what none finds is empty.
    """
    text = _COLOURS.sub("", log[:_HEAD_CHARS])
    values: dict[str, Any] = {}
    for table in (_SHARED, *(engine.log_patterns for engine in ENGINES)):
        for pattern in table:
            values |= pattern.read(text)
    values = _bound_values(values)
    if lines := dict.fromkeys(match[1].strip() for match in re.finditer(_REMARK, text)):
        remarks = [untrusted.read_text(hide_secrets(line[: 2 * untrusted.LONGEST])) for line in lines]
        values["remarks"] = tuple(remarks[:_MOST_REMARKS])
    return EngineConfig(**values)


def parse_info(info: Mapping[str, Any]) -> EngineConfig:
    """Parse an engine's configuration from its answer at its `info_path`; what it lacks is empty."""
    values: dict[str, Any] = {}
    for engine in ENGINES:
        for field in engine.info_fields:
            values |= field.read(info)
    return EngineConfig(**_bound_values(values))


def _bound_value(field: str, value: object) -> object:
    """Return a text cut to its bound, or a number if it is 0 to 2⁵³; else None or ""."""
    if isinstance(value, str):
        return untrusted.read_text(value, LONGEST_FLAGS if field == "flags" else untrusted.LONGEST)
    return untrusted.read_number(value) if isinstance(value, float) else untrusted.read_count(value)


def _bound_values(values: Mapping[str, object]) -> dict[str, Any]:
    kept = ((field, _bound_value(field, value)) for field, value in values.items())
    return {field: value for field, value in kept if not is_empty(value)}


def merge_configs(*parts: EngineConfig) -> EngineConfig:
    """Merge configurations from several sources; a later source's value wins unless it is empty."""
    return EngineConfig(**{name: value for part in parts for name, value in part if not is_empty(value)})


def render_config(as_run: EngineConfig, checkpoint: Checkpoint | None = None) -> list[str]:
    """Describe what the engine runs, its size, differences from the checkpoint and remarks, a line each."""
    model = []
    if as_run.weights_bytes:
        each = " on each GPU" if (as_run.tensor_parallel or 1) > 1 else ""
        model.append(f"{_format_gib(as_run.weights_bytes)} of weights{each}")
    elif checkpoint and checkpoint.weight_bytes:
        model.append(f"{_format_gib(checkpoint.weight_bytes)} of weights on disk")
    if as_run.kv_capacity_tokens:
        size = f" ({_format_gib(as_run.kv_bytes)})" if as_run.kv_bytes else ""
        model.append(f"KV cache for {as_run.kv_capacity_tokens:,} tokens{size}")
    if as_run.max_model_len:
        model.append(f"context {as_run.max_model_len:,}")
    lines = [
        ("runs", ", ".join(_render_run(as_run, checkpoint))),
        ("model", ", ".join(model)),
        *(("differs", difference) for difference in _list_differences(as_run, checkpoint)),
        *(("engine log", remark) for remark in as_run.remarks),
    ]
    return [f"{name}: {text}" for name, text in lines if text]


def _render_run(as_run: EngineConfig, checkpoint: Checkpoint | None) -> list[str]:
    """Describe how the engine runs the model, a phrase for each setting that it reports."""
    sizes = as_run.cuda_graph_sizes if as_run.cuda_graphs != "off" else ""
    graphs = f"{as_run.cuda_graphs} ({sizes})" if sizes else as_run.cuda_graphs
    parts = {
        "attention {}": as_run.attention_backend,
        "MoE by {}": as_run.moe_kernel,
        "KV {}": as_run.kv_cache_dtype,
        "CUDA graphs {}": graphs,
        "prefix caching {}": as_run.prefix_caching,
        "chunked prefill {}": as_run.chunked_prefill,
        "speculative {}": as_run.speculative,
        "{} requests at once": as_run.max_running,
        "{} GPUs in parallel": (as_run.tensor_parallel or 1) > 1 and as_run.tensor_parallel,
    }
    weights = [_render_weights(as_run, checkpoint)] if as_run != EngineConfig() else []
    return [*filter(None, weights), *(form.format(value) for form, value in parts.items() if value)]


def _render_weights(as_run: EngineConfig, checkpoint: Checkpoint | None) -> str:
    """Describe the weights' quantization and kernel, in the checkpoint's terms if they agree."""
    declared = checkpoint.quantization if checkpoint else ""
    method = as_run.quantization
    if not method:
        weights = f"{declared} as declared" if declared else ""
    elif declared and _is_agreeing(method, declared):
        weights = declared
    else:
        weights = UNQUANTIZED.get(as_run.dtype, "") if method == "none" else method
    return " by ".join(filter(None, (weights, as_run.kernel)))


def explain_unknown_kernels(as_run: EngineConfig, checkpoint: Checkpoint | None) -> str:
    """Return a line if the engine chose a kernel for quantized weights and nothing names it; else "".

    Of plain weights and GGUF there is no choice; the name of a method, as gptq_marlin, may name the kernel.
    """
    declared = checkpoint.quantization if checkpoint else ""
    method = as_run.quantization or declared
    if as_run.kernel or as_run.moe_kernel or not method or method.startswith(_ONE_KERNEL):
        return ""
    named = any(word in method.lower() for word in ("marlin", "cutlass", "exllama"))
    return (
        ""
        if named
        else f"kernels of {declared or method}: unknown, neither the server nor a log here names them"
    )


def _list_differences(as_run: EngineConfig, checkpoint: Checkpoint | None) -> list[str]:
    """List in words where quantization, dtype and context differ; [] without a checkpoint."""
    if checkpoint is None:
        return []
    differences = []
    declared, stored, method = checkpoint.quantization, checkpoint.dtype, as_run.quantization
    if method and declared and not _is_agreeing(method, declared):
        ran = "without quantization" if method == "none" else f"as {method}"
        differences.append(f"the checkpoint is {declared}, the engine runs it {ran}")
    if stored and as_run.dtype and stored != as_run.dtype:
        differences.append(f"the checkpoint is in {stored}, the engine computes in {as_run.dtype}")
    if checkpoint.max_positions and (as_run.max_model_len or 0) > checkpoint.max_positions:
        differences.append(
            f"the engine's context of {as_run.max_model_len:,} is beyond the checkpoint's "
            f"{checkpoint.max_positions:,} positions"
        )
    return differences


def _is_agreeing(method: str, declared: str) -> bool:
    """Whether a method runs what a checkpoint declares; an unknown one runs all that is quantized."""
    begins = next((begins for name, begins in _RUNS.items() if name in method.lower()), None)
    if begins is None:  # compressed-tensors, modelopt, quark, inc: any quantization
        return not declared.startswith(_RUNS["none"])
    return any(part.startswith(begins) for part in declared.split("+"))


def _format_gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"


def read_beginning(log: Path) -> str:
    """Read a log's first 4 MiB, where an engine prints its configuration; "" if the log is gone."""
    try:
        return untrusted.read_file_head(log, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def read_attached_log(pids: Sequence[int]) -> str:
    """Read what a running server's processes write to files, from the last start on; "" if none is found.

    These are standard output and error of its first 8 processes, where they are files of this machine; of a
    container, a terminal or another user's server nothing is read.
    """
    files: dict[tuple[int, int], Path] = {}
    for path in (Path(f"/proc/{pid}/fd/{output}") for pid in pids[:_MOST_PROCESSES] for output in (1, 2)):
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                files.setdefault((status.st_dev, status.st_ino), path)
    text = "\n".join(read_log(path) for path in files.values())
    starts = [match.start() for match in _BEGIN.finditer(text)]
    return text[starts[-1] :] if starts else ""


def read_log(log: Path) -> str:
    """Read a log, of a long one its first and last 4 MiB; if gone, return a sentence, if unreadable ""."""
    try:
        head = untrusted.read_file_head(log, _MOST_BYTES)
        with log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(len(head), size - _MOST_BYTES)
            file.seek(begin)
            tail = file.read(_MOST_BYTES)
    except OSError:
        gone = "the server's log was removed while it ran, so it could not be read"
        return "" if os.path.isfile(log) else f"{gone}: {untrusted.read_text(str(log))}"
    left_out = begin - len(head)
    gap = f"\n… {left_out} bytes left out …\n".encode() if left_out else b""
    return (head + gap + tail).decode("utf-8", "replace")
