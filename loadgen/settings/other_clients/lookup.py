"""Lookup: what an unknown flag was in another client, imported when one is met."""

from __future__ import annotations

from loadgen.settings.other_clients.aiperf import AIPERF
from loadgen.settings.other_clients.client import OtherClient
from loadgen.settings.other_clients.guidellm import GUIDELLM
from loadgen.settings.other_clients.sglang import SGLANG
from loadgen.settings.other_clients.vllm import VLLM

OTHERS: tuple[OtherClient, ...] = (SGLANG, GUIDELLM, AIPERF)
CLIENTS = (VLLM, *OTHERS)


def explained(flag: str) -> str | None:
    """Ours for another client's flag, or why there is none; None where no client has it."""
    words = (client.explained(flag) for client in OTHERS)
    return next((text for text in words if text is not None), None)
