"""transformers: the `transformers serve` command of a server spec, of which it supports little.

Its requests must name the model exactly as given here: /v1/models lists the hub's cache instead.
Unless the caller sets HF_HUB_OFFLINE, it may ask the hub about the model.
"""

from __future__ import annotations

from loadgen_servers.launch import installed
from loadgen_servers.launch.installed import Installation, Package
from loadgen_servers.launch.spec import (
    Command,
    LaunchError,
    ServerSpec,
    check_model,
    flags,
    refuse_unsupported,
)  # fmt: skip

# The first that takes the model as `serve MODEL` and has /v1/completions. The modules: its extra "serving".
PACKAGE = Package(
    "transformers",
    (5, 5, 0),
    "pip install -U 'transformers[serving]>=5.5'",
    ("torch", "accelerate", "fastapi", "uvicorn", "openai"),
)
_QUANTIZATIONS = ("bnb-4bit", "bnb-8bit")
_ADVICE = {
    "context_len": "the model's own limit applies, leave it out",
    "memory_fraction": "leave it out, or --server-args '--continuous-batching --cb-max-memory-percent X'",
    "skip_tokenizer": "it only takes text, leave it out",
    "prefix_caching": "only --server-args --continuous-batching has such a cache; leave it out",
    "max_running": "only --server-args --continuous-batching has such a limit; leave it out",
    "trace_directory": "it has no profiler, leave it out",
    "spans_url": "it exports no spans, leave out --receive-spans",
}


def command(spec: ServerSpec) -> Command:
    """`transformers serve` for `spec`; raises LaunchError, also for what it does not support."""
    check_model(spec.model)
    _check(spec)
    return serve_command(spec, installed.script(PACKAGE, spec.python, spec.asks))


def serve_command(spec: ServerSpec, installation: Installation) -> Command:
    """The spec in the flags of transformers; raises LaunchError for what it does not support."""
    _check(spec)
    values = {
        "--host": spec.host,
        "--port": spec.port,
        "--quantization": spec.quantization,
        "--default-seed": spec.seed,
    }
    return Command(
        (installation.path, "serve", spec.model, *flags(values), *spec.arguments),
        # Without it, its command line asks the package index for a newer version before it starts.
        {**installation.environment, "HF_HUB_DISABLE_UPDATE_CHECK": "1", **spec.environment},
    )


def _check(spec: ServerSpec) -> None:
    refuse_unsupported(spec, "transformers serve", _ADVICE)
    if spec.served_model_name not in (None, spec.model):
        raise LaunchError(
            f"transformers serve knows its model by its path: leave out the name {spec.served_model_name}"
        )
    if spec.tensor_parallel not in (None, 1):
        raise LaunchError(
            f"transformers serve has no tensor parallelism ({spec.tensor_parallel}): leave it out"
        )
    if spec.quantization not in (None, *_QUANTIZATIONS):
        raise LaunchError(
            f"transformers serve quantizes to {' or '.join(_QUANTIZATIONS)}, not {spec.quantization};"
            " leave it out where the checkpoint is quantized already"
        )
