"""Span names: what spans are and hold, by the attributes of those who write them.

OpenTelemetry's own conventions (`gen_ai.*`, older names too), OpenInference (`llm.*`), Traceloop
(`llm.usage.*`, `traceloop.*`) and Vercel's AI SDK (`ai.*`). A new writer is a name in each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Operation(Enum):
    """What a span is of."""

    CALL = "call"  # of a model
    TOOL = "tool"
    AGENT = "agent"
    OTHER = "other"


# By attribute, and its values in lower case. The first attribute with a known value decides.
OPERATIONS: dict[str, dict[str, Operation]] = {
    "ai.operationId": {
        "ai.generatetext": Operation.AGENT,
        "ai.streamtext": Operation.AGENT,
        "ai.generatetext.dogenerate": Operation.CALL,
        "ai.streamtext.dostream": Operation.CALL,
        "ai.generateobject.dogenerate": Operation.CALL,
        "ai.streamobject.dostream": Operation.CALL,
        "ai.toolcall": Operation.TOOL,
    },
    "openinference.span.kind": {
        "llm": Operation.CALL,
        "tool": Operation.TOOL,
        "agent": Operation.AGENT,
        "chain": Operation.OTHER,
    },
    "gen_ai.operation.name": {
        "chat": Operation.CALL,
        "text_completion": Operation.CALL,
        "generate_content": Operation.CALL,
        "execute_tool": Operation.TOOL,
        "invoke_agent": Operation.AGENT,
        "invoke_workflow": Operation.AGENT,
    },
    "llm.request.type": {"chat": Operation.CALL, "completion": Operation.CALL},
    "traceloop.span.kind": {
        "tool": Operation.TOOL,
        "agent": Operation.AGENT,
        "workflow": Operation.AGENT,
        "task": Operation.OTHER,
    },
}
INPUT_TOKENS = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
    "ai.usage.inputTokens",
    "ai.usage.promptTokens",
)
OUTPUT_TOKENS = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
    "ai.usage.outputTokens",
    "ai.usage.completionTokens",
)
CACHED_TOKENS = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
    "llm.usage.cache_read_input_tokens",
    "ai.usage.cachedInputTokens",
    "ai.usage.inputTokenDetails.cacheReadTokens",
)
LIMIT = ("gen_ai.request.max_tokens", "llm.request.max_tokens", "ai.settings.maxTokens")
CONVERSATION = (
    "gen_ai.conversation.id",
    "session.id",
    "exgentic.session.id",
    "traceloop.association.properties.session_id",
    "langfuse.session.id",
    "ai.telemetry.metadata.sessionId",
)
AGENT = (
    "gen_ai.agent.name",
    "agent.name",
    "graph.node.id",
    "traceloop.entity.name",
    "ai.telemetry.functionId",
    "gen_ai.agent.id",
)


def find_operation(attributes: Mapping[str, Any]) -> Operation:
    """Find what a span is of; OTHER if no attribute says it."""
    for name, known in OPERATIONS.items():
        value = attributes.get(name)
        if isinstance(value, str) and (found := known.get(value.lower())):
            return found
    return Operation.OTHER


def read_count(attributes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first of the names that holds a number of tokens from 0, also as text; None without one."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
            return int(value)
    return None


def read_text(attributes: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the first of the names that holds a text; "" without one."""
    return next((value for name in names if isinstance(value := attributes.get(name), str) and value), "")
