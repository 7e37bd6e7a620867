"""transformers: `transformers serve`, told what an order asks for, which is little.

Its requests must name the model exactly as it is given here: /v1/models lists the hub's cache instead.
Unless HF_HUB_OFFLINE is set, which is the caller's to decide, it may ask the hub about the model.
"""

from __future__ import annotations

from loadgen_servers.launch import installed
from loadgen_servers.launch.installed import Found, Package
from loadgen_servers.launch.order import Command, LaunchError, Order, check_model, options, refuse

# The first that takes the model as `serve MODEL` and has /v1/completions. The modules: its extra "serving".
PACKAGE = Package(
    "transformers",
    (5, 5, 0),
    "pip install -U 'transformers[serving]>=5.5'",
    ("torch", "accelerate", "fastapi", "uvicorn", "openai"),
)
_QUANTIZATIONS = ("bnb-4bit", "bnb-8bit")
_ADVICE = {
    "context_len": "it takes what the model takes, leave it out",
    "memory_fraction": "leave it out, or --server-args '--continuous-batching --cb-max-memory-percent X'",
    "skip_tokenizer": "it takes text alone, leave it out",
    "prefix_caching": "it has no such cache, but with --server-args --continuous-batching; leave it out",
    "trace_directory": "it has no profiler, leave it out",
}


class Transformers:
    """Launches `transformers serve` where it is installed."""

    def command(self, order: Order) -> Command:
        """`transformers serve` for `order`; raises LaunchError, also for what it cannot be told."""
        check_model(order.model)
        _check(order)
        return spelt(order, installed.script(PACKAGE, order.python))


def spelt(order: Order, found: Found) -> Command:
    """What `order` is called in transformers; raises LaunchError for what it cannot be told."""
    _check(order)
    values = {
        "--host": order.host,
        "--port": order.port,
        "--quantization": order.quantization,
        "--default-seed": order.seed,
    }
    return Command(
        (found.path, "serve", order.model, *options(values), *order.arguments),
        # Its command line asks the package index for a newer version before it starts, unless told not to.
        {**found.environment, "HF_HUB_DISABLE_UPDATE_CHECK": "1", **order.environment},
    )


def _check(order: Order) -> None:
    refuse(order, "transformers serve", _ADVICE)
    if order.served_model_name not in (None, order.model):
        raise LaunchError(
            f"transformers serve knows its model by its path: leave out the name {order.served_model_name}"
        )
    if order.tensor_parallel not in (None, 1):
        raise LaunchError(
            f"transformers serve has no tensor parallelism ({order.tensor_parallel}): leave it out"
        )
    if order.quantization not in (None, *_QUANTIZATIONS):
        raise LaunchError(
            f"transformers serve quantizes to {' or '.join(_QUANTIZATIONS)}, not {order.quantization};"
            " leave it out where the checkpoint is quantized already"
        )
