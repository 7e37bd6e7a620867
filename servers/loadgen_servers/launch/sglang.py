"""SGLang: `python -m sglang.launch_server`, told what an order asks for."""

from __future__ import annotations

import os

from loadgen_servers.launch import installed
from loadgen_servers.launch.installed import Found, Package
from loadgen_servers.launch.order import Command, Order, check_model, options

# The first whose /flush_cache and metrics are as they are read here.
PACKAGE = Package("sglang", (0, 4, 6), "pip install -U sglang")


class Sglang:
    """Launches SGLang where it is installed."""

    def command(self, order: Order) -> Command:
        """`python -m sglang.launch_server` for `order`; raises LaunchError."""
        check_model(order.model)
        return spelt(order, installed.interpreter(PACKAGE, order.python))


def spelt(order: Order, found: Found) -> Command:
    """What `order` is called in SGLang, run by the interpreter that was found."""
    values = {
        "--model-path": order.model,
        "--served-model-name": order.served_model_name,
        "--host": order.host,
        "--port": order.port,
        "--context-length": order.context_len,
        "--mem-fraction-static": order.memory_fraction,
        "--tp-size": order.tensor_parallel,
        "--quantization": order.quantization,
        "--random-seed": order.seed,
    }
    tokenizer = ("--skip-tokenizer-init",) if order.skip_tokenizer else ()
    # Its prefix cache is on unless it is told otherwise, and no flag says on.
    cache = ("--disable-radix-cache",) if order.prefix_caching is False else ()
    trace = order.trace_directory
    tracing = {} if trace is None else {"SGLANG_TORCH_PROFILER_DIR": os.path.abspath(trace)}
    return Command(
        (
            found.path,
            "-m",
            "sglang.launch_server",
            *options(values),
            *tokenizer,
            *cache,
            "--enable-metrics",  # without it there is no /metrics
            *order.arguments,
        ),
        {**found.environment, **tracing, **order.environment},
    )
