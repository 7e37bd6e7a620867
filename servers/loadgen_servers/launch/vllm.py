"""vLLM: the `vllm serve` command of a server spec."""

from __future__ import annotations

import json
import os

from loadgen_servers.launch import installed
from loadgen_servers.launch.installed import Installation, Package, Version
from loadgen_servers.launch.spec import SPANS_BY_HTTP, Command, ServerSpec, check_model, flags

# The first version whose default engine is V1, with the flags, metrics and prefix cache of today.
PACKAGE = Package("vllm", (0, 8, 0), "pip install -U vllm")
_PROFILER_CONFIG = (0, 13)  # before it, an environment variable
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def command(spec: ServerSpec) -> Command:
    """`vllm serve` for `spec`; raises LaunchError."""
    check_model(spec.model)
    return serve_command(spec, installed.script(PACKAGE, spec.python, spec.asks))


def serve_command(spec: ServerSpec, installation: Installation) -> Command:
    """The spec in the flags of the installed version; of an unknown version, in those of a recent one."""
    trace, tracing = _trace(spec.trace_directory, installation.version)
    values = {
        "--host": spec.host,
        "--port": spec.port,
        "--served-model-name": spec.served_model_name,
        "--max-model-len": spec.context_len,
        "--gpu-memory-utilization": spec.memory_fraction,
        "--tensor-parallel-size": spec.tensor_parallel,
        "--quantization": spec.quantization,
        "--seed": spec.seed,
        "--max-num-seqs": spec.max_running,
        "--profiler-config": trace,
        "--otlp-traces-endpoint": spec.spans_url,
        "--skip-tokenizer-init": spec.skip_tokenizer,
        "--enable-prefix-caching": spec.prefix_caching is True,
        "--no-enable-prefix-caching": spec.prefix_caching is False,
    }
    own = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if spec.host in _LOOPBACK:
        # /reset_prefix_cache, which empties the cache between runs, exists only in dev mode. Dev mode also
        # lets any caller put the server to sleep: only where the server is not reachable from elsewhere.
        own["VLLM_SERVER_DEV_MODE"] = "1"
    if spec.spans_url is not None:
        own |= SPANS_BY_HTTP
    return Command(
        (installation.path, "serve", spec.model, *flags(values), *spec.arguments),
        {**installation.environment, **own, **tracing, **spec.environment},
    )


def _trace(directory: str | None, version: Version | None) -> tuple[str | None, dict[str, str]]:
    """The value of --profiler-config, and the environment, with which /start_profile exists."""
    if directory is None:
        return None, {}
    path = os.path.abspath(directory)  # vLLM before 0.13 refuses a relative one
    if version is not None and version < _PROFILER_CONFIG:
        return None, {"VLLM_TORCH_PROFILER_DIR": path}
    return json.dumps({"profiler": "torch", "torch_profiler_dir": path}), {}
