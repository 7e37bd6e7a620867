"""Causes: what real engines' last words are taken to mean."""

from __future__ import annotations

from pathlib import Path

from builders.loops import loop_over
from loadgen_servers.process.failure_causes import cause

LOGS = Path(__file__).parents[2] / "data" / "server_logs"
SAID = {
    "vllm_kv_cache_none": "the weights leave no GPU memory for the KV cache",
    "vllm_kv_cache_too_small": "the KV cache has no room for one request of 131072 tokens",
    "vllm_memory_taken": "other processes hold the GPU's memory (7.34/139.72 GiB is free)",
    "vllm_host_memory_taken": "other processes hold the host's memory (11.55/12.96 GiB is free): end them",
    "vllm_out_of_memory": "the GPU's memory ran out: end what else uses it",
    "vllm_engine_killed": "killed, as the kernel does when the host's memory runs out",
    "vllm_no_kernel": "the engine has no kernels for this GPU",
    "thor_ptxas": "the engine has no kernels for this GPU",
    "vllm_quantization_gpu": "the GPU cannot run this quantization (Minimum capability: 90)",
    "vllm_quantization_scheme": "the GPU cannot run this quantization (Min capability: 80)",
    "vllm_quantization_unknown": "the engine does not know the quantization awq_v2:",
    "vllm_architecture": "does not know the model (['OpenVLAForActionPrediction'])",
    "vllm_transformers_too_old": "does not know the model (qwen2_5_vl): update",
    "vllm_gated": "the model is gated: ask for access on its page, and set HF_TOKEN",
    "vllm_not_cached": "the hub cannot be reached, and its cache does not have the model",
    "vllm_missing_model": "the model exists neither as a directory nor on the hub",
    "vllm_remote_code": "add --trust-remote-code to --server-args",
    "vllm_arguments": "rejects its arguments, unrecognized arguments: --max-model-length 4096:",
    "vllm_no_device": "the engine finds no usable GPU",
    "vllm_driver_too_old": "the NVIDIA driver is older than the CUDA",
    "vllm_port_taken": "a port that it needs is taken",
    "uvicorn_port_taken": "a port that it needs is taken",
    "vllm_context": "the model does not support a context of 129152 tokens: lower --context-len",
    "vllm_tensor_parallel": "heads (32) must be divisible by tensor parallel size (3): take another",
    "sglang_memory": "the weights leave no GPU memory for the KV cache",
    "sglang_scheduler_killed": "killed, as the kernel does when the host's memory runs out",
    "sglang_kernels": "SGLang's kernels are missing or of a different build",
    "sglang_library": "the library libnvrtc.so.12 is missing",
    "llamacpp_not_gguf": "the model is no GGUF file: check --model",
    "llamacpp_cut": "the GGUF file is incomplete (failed to read key-value pairs)",
    "llamacpp_half": "the GGUF file is incomplete (token_embd.weight): download it again",
    "llamacpp_missing": "the GGUF file cannot be opened (nope.gguf)",
    "llamacpp_argument": "rejects an argument (invalid argument: --frobnicate): see its --help",
    "llamacpp_value": "rejects an argument (-ctk)",
    "llamacpp_slots": "llama.cpp has at most 256 slots: lower --max-running",
    "llamacpp_port_taken": "a port that it needs is taken",
    "llamacpp_out_of_memory": "the host's memory ran out",
    "docker_no_gpu": "install the NVIDIA Container Toolkit",
}
SERVED = ("sglang_serves", "vllm_serves", "llamacpp_serves")


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text("utf-8")


def test_every_kept_log_is_looked_at() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == {*SAID, *SERVED}


@loop_over("name", SAID)
def test_a_known_last_word_is_explained_in_one_line(name: str) -> None:
    found = cause(log(name), 1)
    assert SAID[name] in found
    assert "\n" not in found
    assert "{" not in found


@loop_over("name", SAID)
def test_the_explanation_survives_what_the_tail_clips(name: str) -> None:
    clipped = "\n".join(line[:200] for line in log(name).splitlines())
    assert cause(clipped, 1) == cause(log(name), 1)


@loop_over("name", SERVED)
def test_what_a_server_logs_and_lives_with_is_no_cause(name: str) -> None:
    assert cause(log(name), 1) == ""


@loop_over(("line", "begin"), [
    ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried",
     "the host's memory"),
    ("RuntimeError: CUDA out of memory occurred when warming up sampler",
     "the GPU's memory ran out in the warm-up"),
    ("[rank1]: torch.AcceleratorError: CUDA error: invalid device ordinal", "there are fewer GPUs"),
    ("ValueError: fp6 quantization is currently not supported in cpu.",
     "the GPU cannot run this quantization (fp6 "),
    ("ValueError: Invalid quantization method on CPU: exl2. Available methods on CPU: []",
     "the engine does not know the quantization exl2:"),
    ("OSError: /models/none does not appear to have a file named config.json. Checkout",
     "--model is not a model (config.json)"),
    ("OSError: Can't load tokenizer for '/models/x'. If you were", "the tokenizer cannot be loaded"),
    ("RuntimeError: Cannot find any model weights with `/models/x`",
     "the model's directory has no weights (/models/x)"),
    ("OSError: [Errno 28] No space left on device", "a disk is full"),
    ("ImportError: /usr/lib/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
     "a library was built for another version of torch (undefined symbol: _ZN3c10"),
    ("ModuleNotFoundError: No module named 'fastapi'\n", "its Python has no fastapi: install"),
    ("launch_server.py: error: argument --tp-size: invalid int value: 'two'",
     "the engine rejects its arguments, argument --tp-size"),
    ("docker: permission denied while trying to connect to the docker API at unix:///var/run/docker.sock",
     "this user may not use docker"),
    ("Error: initializing source docker://nope:1: unable to pull: manifest for nope:1 not found",
     "the image does not exist (nope:1)"),
    ("AssertionError: Torch not compiled with CUDA enabled", "the engine finds no usable GPU"),
    ("ImportError: cannot import name 'fp8_gemm' from 'sgl_kernel' (unknown location)",
     "SGLang's kernels are missing"),
])  # fmt: skip
def test_a_line_is_explained(line: str, begin: str) -> None:
    assert cause(f"Loading weights\n{line}", 1).startswith(begin)


@loop_over("line", [
    "WARNING 11-20 12:00:00 [x.py:1] ModuleNotFoundError: No module named 'flash_attn'",
    "/usr/lib/site.py:1: UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
    "ModuleNotFoundError: No module named 'torchaudio'\nServer is ready",
    "IndexError: index out of range in self",
])  # fmt: skip
def test_what_does_not_explain_an_end_is_not_taken_for_it(line: str) -> None:
    assert cause(line, 1) == ""


@loop_over(("exit_code", "begin"), [
    (-9, "killed, as the kernel does"), (137, "killed, as the kernel does"),
    (-4, "it uses instructions that this CPU does not have"), (139, "it crashed (segmentation fault)"),
    (-7, "it ran out of shared memory"), (0, ""), (1, ""), (-15, ""), (None, ""),
])  # fmt: skip
def test_without_a_word_the_signal_counts(exit_code: int | None, begin: str) -> None:
    found = cause("Loading weights", exit_code)
    assert found.startswith(begin)
    assert bool(found) == bool(begin)


def test_a_known_line_counts_more_than_the_signal() -> None:
    assert cause(log("vllm_gated"), -9).startswith("the model is gated")
