"""What runs, in the report's words, and what of it differs from what the checkpoint declares."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.base.text import wrap_text
from loadgen.roofline.checkpoint import Checkpoint
from loadgen.server.engine_config import EngineConfig, parse_log, render_config
from server.test_engine_config import gib, log


def declared(quantization: str, dtype: str = "", positions: int | None = None) -> Checkpoint:
    return Checkpoint(
        path="/m",
        config_digest="0",
        quantization=quantization,
        dtype=dtype,
        max_positions=positions,
        weight_bytes=gib(5.7),
    )


@loop_over(
    ("name", "checkpoint", "lines"),
    [
        pytest.param(
            "vllm-0.10-gptq-tp2",
            declared("GPTQ-Int4", "float16", 40960),
            [
                "runs: GPTQ-Int4 by MarlinLinearKernel, attention FLASH_ATTN, KV auto, CUDA",
                "  graphs on (7 sizes up to 512), prefix caching on, chunked prefill on,",
                "  speculative ngram, 4 tokens, 2 GPUs in parallel",
                "model: 2.9 GiB of weights on each GPU, KV cache for 225,328 tokens (15.5 GiB),",
                "  context 40,960",
            ],
            id="as declared",
        ),
        pytest.param(
            "vllm-0.15-nvfp4-fallback",
            declared("NVFP4", "bfloat16", 40960),
            [
                "runs: NVFP4 by MarlinNvFp4LinearKernel, attention FLASHINFER, MoE by MARLIN, KV",
                "  fp8, CUDA graphs FULL_AND_PIECEWISE (7 sizes up to 32), prefix caching on,",
                "  chunked prefill on",
                "model: 16.9 GiB of weights, KV cache for 1,337,104 tokens (61.2 GiB), context",
                "  262,144",
                "differs: the engine's context of 262,144 is beyond the checkpoint's 40,960",
                "  positions",
                "engine log: Your GPU does not have native support for FP4 computation but FP4",
                "  quantization is being used. Weight-only FP4 compression will be used",
                "  leveraging the Marlin kernel. This may degrade performance for compute-heavy",
                "  workloads.",
                "engine log: Using default MoE config. Performance might be sub-optimal! Config",
                "  file not found at /models/configs/E=128,N=768,device_name=NVIDIA_H20.json",
            ],
            id="by a fallback",
        ),
        pytest.param(
            "vllm-0.32-cpu",
            declared("FP8", "float16"),
            [
                "runs: BF16, KV auto, CUDA graphs off, prefix caching on, chunked prefill on",
                "model: 5.7 GiB of weights on disk, KV cache for 2,097,152 tokens (1.0 GiB),",
                "  context 4,096",
                "differs: the checkpoint is FP8, the engine runs it without quantization",
                "differs: the checkpoint is in float16, the engine computes in bfloat16",
            ],
            id="otherwise",
        ),
        pytest.param(
            "sglang-0.4-fp8-tp2",
            declared("BF16", "bfloat16"),
            [
                "runs: fp8, attention fa3, KV float8_e5m2, CUDA graphs on (9 sizes up to 160),",
                "  prefix caching off, chunked prefill 8192, 2 GPUs in parallel",
                "model: 16.3 GiB of weights on each GPU, KV cache for 1,694,212 tokens (103.4",
                "  GiB), context 40,960",
                "differs: the checkpoint is BF16, the engine runs it as fp8",
            ],
            id="quantized at loading",
        ),
        pytest.param("transformers-5.19-cpu", None, [], id="nothing"),
        pytest.param(
            "transformers-5.19-cpu",
            declared("BF16"),
            ["model: 5.7 GiB of weights on disk"],
            id="the checkpoint alone",
        ),
    ],
)
def test_the_report_says_what_runs_and_what_differs(
    name: str, checkpoint: Checkpoint | None, lines: list[str]
) -> None:
    assert [
        part for line in render_config(parse_log(log(name)), checkpoint) for part in wrap_text(line)
    ] == lines


@loop_over(
    ("method", "word", "shown"),
    [
        ("compressed-tensors", "Int4-W4A16", "Int4-W4A16"),
        ("compressed-tensors", "BF16", "compressed-tensors"),
        ("modelopt", "FP8", "FP8"),
        ("modelopt_fp4", "FP8+NVFP4", "FP8+NVFP4"),
        ("awq_marlin", "AWQ-4bit", "AWQ-4bit"),
        ("gptq_marlin", "AutoRound-Int4", "AutoRound-Int4"),
        ("gptq_marlin", "AWQ-4bit", "gptq_marlin"),
        ("fp8", "BF16", "fp8"),
        ("none", "BF16", "BF16"),
        ("", "FP8", "FP8 as declared"),
        ("", "", ""),
        ("gguf", "GGUF-Q4_K_M", "GGUF-Q4_K_M"),
    ],
)
def test_the_fields_word_is_shown_where_the_engine_runs_just_that(method: str, word: str, shown: str) -> None:
    lines = render_config(EngineConfig(quantization=method, attention_backend="X"), declared(word))
    assert lines[0] == "runs: " + ", ".join(filter(None, (shown, "attention X")))
    assert any(line.startswith("differs:") for line in lines) == (shown == method != "")
