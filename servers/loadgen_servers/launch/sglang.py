"""SGLang: the `python -m sglang.launch_server` command of a server spec."""

from __future__ import annotations

import os

from loadgen_servers.launch import installed
from loadgen_servers.launch.installed import Installation, Package
from loadgen_servers.launch.spec import SPANS_BY_HTTP, Command, ServerSpec, check_model, flags

# The first version whose /flush_cache and metrics this client reads.
PACKAGE = Package("sglang", (0, 4, 6), "pip install -U sglang")


def command(spec: ServerSpec) -> Command:
    """`python -m sglang.launch_server` for `spec`; raises LaunchError."""
    check_model(spec.model)
    return serve_command(spec, installed.interpreter(PACKAGE, spec.python, spec.asks))


def serve_command(spec: ServerSpec, installation: Installation) -> Command:
    """The spec in the flags of SGLang, run by the interpreter that has it."""
    values = {
        "--model-path": spec.model,
        "--served-model-name": spec.served_model_name,
        "--host": spec.host,
        "--port": spec.port,
        "--context-length": spec.context_len,
        "--mem-fraction-static": spec.memory_fraction,
        "--tp-size": spec.tensor_parallel,
        "--quantization": spec.quantization,
        "--random-seed": spec.seed,
        "--max-running-requests": spec.max_running,
        "--skip-tokenizer-init": spec.skip_tokenizer,
        # Its prefix cache is on by default, and there is no flag for on.
        "--disable-radix-cache": spec.prefix_caching is False,
        "--enable-metrics": True,  # without it there is no /metrics
        "--enable-trace": spec.spans_url is not None,
        "--otlp-traces-endpoint": spec.spans_url,
    }
    trace = spec.trace_directory
    tracing = {} if trace is None else {"SGLANG_TORCH_PROFILER_DIR": os.path.abspath(trace)}
    if spec.spans_url is not None:
        tracing |= SPANS_BY_HTTP
    return Command(
        (installation.path, "-m", "sglang.launch_server", *flags(values), *spec.arguments),
        {**installation.environment, **tracing, **spec.environment},
    )
