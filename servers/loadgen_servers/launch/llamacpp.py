"""llama.cpp: the `llama-server` command of a server spec; its model is a GGUF file.

A context is shared out among its slots, so that what each request may need is asked for once a slot.
"""

from __future__ import annotations

import os
import shutil

from loadgen_servers.launch.installed import Installation
from loadgen_servers.launch.spec import (
    Command,
    LaunchError,
    ServerSpec,
    flags,
    is_hub_name,
    refuse_unsupported,
)

EXECUTABLE = "llama-server"
_USUAL_SLOTS = 4  # its own number where none is asked for, which then share one context
_INSTALL = (
    "build llama.cpp (cmake -B build && cmake --build build --target llama-server), or give the path of its "
    "llama-server with --server-python"
)
_ADVICE = {
    "memory_fraction": "it takes what the model and --context-len need; --server-args '-ngl N' keeps layers "
    "in the host's memory",
    "quantization": "a GGUF file has its own: choose the file with --model",
    "skip_tokenizer": "it takes token ids next to text, leave it out",
    "trace_directory": "it has no profiler, leave it out",
    "spans_url": "it exports no spans, leave out --receive-spans",
}


def command(spec: ServerSpec) -> Command:
    """`llama-server` for `spec`; raises LaunchError, also for what it does not support."""
    check_file(spec.model)
    return serve_command(spec, Installation(_executable(spec.python, spec.asks), None))


def serve_command(spec: ServerSpec, installation: Installation) -> Command:
    """The spec in the flags of llama-server; raises LaunchError for what it does not support."""
    check_file(spec.model)
    refuse_unsupported(spec, "llama-server", _ADVICE)
    if spec.tensor_parallel not in (None, 1):
        raise LaunchError(
            f"llama-server has no tensor parallelism ({spec.tensor_parallel}): it lays the layers over all "
            "GPUs that CUDA_VISIBLE_DEVICES leaves it; leave it out"
        )
    local = os.path.isfile(spec.model)
    slots = spec.max_running or (_USUAL_SLOTS if spec.context_len else None)
    values = {
        "--model" if local else "--hf-repo": spec.model,
        "--alias": spec.served_model_name,
        "--host": spec.host,
        "--port": spec.port,
        "--ctx-size": spec.context_len and spec.context_len * (slots or 1),
        "--parallel": slots,
        "--seed": spec.seed,
        "--cache-prompt": spec.prefix_caching is True,
        "--no-cache-prompt": spec.prefix_caching is False,
        "--metrics": True,  # without it there is no /metrics
        "--slots": True,
    }
    return Command(
        (installation.path, *flags(values), *spec.arguments), {**installation.environment, **spec.environment}
    )


def check_file(model: str) -> None:
    """Raises LaunchError unless `model` is a GGUF file or a name on the hub."""
    if not model:
        raise LaunchError("no model to serve: pass --model with a .gguf file or a model of the hub")
    if os.path.isdir(model):
        inside = sorted(name for name in os.listdir(model) if name.endswith(".gguf"))
        fix = (
            f"give {os.path.join(model, inside[0])}"
            if inside
            else "convert_hf_to_gguf.py of llama.cpp makes one"
        )
        raise LaunchError(f"{model} is a directory, and llama-server serves one .gguf file: {fix}")
    if os.path.isfile(model):
        if not model.endswith(".gguf"):
            raise LaunchError(f"{model} is no .gguf file, which is all that llama-server serves")
    elif not is_hub_name(model):
        raise LaunchError(f"{model} does not exist or cannot be read: give a .gguf file")


def _executable(place: str | None, asks: bool) -> str:
    """The llama-server at a place, a file or the directory it is in; without one, that on PATH."""
    if place is None:
        path = shutil.which(EXECUTABLE) or ("" if asks else EXECUTABLE)
        if not path:
            raise LaunchError(f"no {EXECUTABLE} on PATH: {_INSTALL}")
        return path if path == EXECUTABLE else os.path.abspath(path)
    inside = [os.path.join(place, *parts, EXECUTABLE) for parts in ((), ("bin",), ("build", "bin"))]
    named = inside if os.path.isdir(place) else [place]
    found = next(filter(None, (shutil.which(os.path.abspath(path)) for path in named)), shutil.which(place))
    if found is None:
        wrong = f"has no {EXECUTABLE} in it" if os.path.isdir(place) else "is no program"
        raise LaunchError(f"--server-python {place} {wrong}: {_INSTALL}")
    return os.path.abspath(found)
