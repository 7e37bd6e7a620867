"""vLLM: `vllm serve`, told what an order asks for."""

from __future__ import annotations

import json
import os

from loadgen_servers.launch import installed
from loadgen_servers.launch.installed import Found, Package, Version
from loadgen_servers.launch.order import Command, Order, check_model, options

# The first whose default engine is today's (V1): its flags, its metrics, its prefix cache.
PACKAGE = Package("vllm", (0, 8, 0), "pip install -U vllm")
_PROFILER_CONFIG = (0, 13)  # before it, an environment variable
_PREFIX_CACHING = {None: (), True: ("--enable-prefix-caching",), False: ("--no-enable-prefix-caching",)}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Vllm:
    """Launches vLLM where it is installed."""

    def command(self, order: Order) -> Command:
        """`vllm serve` for `order`; raises LaunchError."""
        check_model(order.model)
        return spelt(order, installed.script(PACKAGE, order.python))


def spelt(order: Order, found: Found) -> Command:
    """What `order` is called in the vLLM that was found; of no known version, a recent one."""
    trace, tracing = _trace(order.trace_directory, found.version)
    values = {
        "--host": order.host,
        "--port": order.port,
        "--served-model-name": order.served_model_name,
        "--max-model-len": order.context_len,
        "--gpu-memory-utilization": order.memory_fraction,
        "--tensor-parallel-size": order.tensor_parallel,
        "--quantization": order.quantization,
        "--seed": order.seed,
        "--profiler-config": trace,
    }
    tokenizer = ("--skip-tokenizer-init",) if order.skip_tokenizer else ()
    own = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if order.host in _LOOPBACK:
        # /reset_prefix_cache, which empties the cache between runs, exists in dev mode alone. Dev mode also
        # lets any caller put the server to sleep: only where nobody but this machine can call.
        own["VLLM_SERVER_DEV_MODE"] = "1"
    return Command(
        (
            found.path,
            "serve",
            order.model,
            *options(values),
            *tokenizer,
            *_PREFIX_CACHING[order.prefix_caching],
            *order.arguments,
        ),
        {**found.environment, **own, **tracing, **order.environment},
    )


def _trace(directory: str | None, version: Version | None) -> tuple[str | None, dict[str, str]]:
    """What makes /start_profile exist: the value of --profiler-config, and the environment."""
    if directory is None:
        return None, {}
    path = os.path.abspath(directory)  # vLLM before 0.13 refuses a relative one
    if version is not None and version < _PROFILER_CONFIG:
        return None, {"VLLM_TORCH_PROFILER_DIR": path}
    return json.dumps({"profiler": "torch", "torch_profiler_dir": path}), {}
