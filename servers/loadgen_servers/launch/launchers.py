"""The engines that are launched by name."""

from __future__ import annotations

from collections.abc import Callable

from loadgen_servers.launch.order import Launcher
from loadgen_servers.launch.sglang import Sglang
from loadgen_servers.launch.transformers import Transformers
from loadgen_servers.launch.vllm import Vllm

LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "transformers": Transformers,
}
