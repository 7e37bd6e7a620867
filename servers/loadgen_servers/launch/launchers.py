"""The engines that are launched by name."""

from __future__ import annotations

from loadgen_servers.launch import sglang, transformers, vllm
from loadgen_servers.launch.spec import Launcher

LAUNCHERS: dict[str, Launcher] = {
    "vllm": vllm.command,
    "sglang": sglang.command,
    "transformers": transformers.command,
}
