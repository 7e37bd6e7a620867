"""The engines that are launched by name."""

from __future__ import annotations

from loadgen_servers.launch import llamacpp, sglang, transformers, vllm

# Each makes the command for a spec and starts nothing; raises LaunchError.
LAUNCHERS = {
    "vllm": vllm.command,
    "sglang": sglang.command,
    "transformers": transformers.command,
    "llamacpp": llamacpp.command,
}
