"""Turn refusals: why a server does not take one more turn of a conversation, by the words of its error."""

from __future__ import annotations

import re

from loadgen.wire.refusals import TOOLS_REFUSED

# How servers word that prompt and answer are more than the model's context: vLLM, SGLang, llama.cpp,
# llama-cpp-python, TGI, TensorRT-LLM, OpenAI, Anthropic, Gemini, Mistral, and the embedded engine.
_PAST_CONTEXT = re.compile(
    r"maximum context length|context_length_exceeded|exceed_context_size|"
    r"exceed\w{0,3}\b.{0,40}\bcontext (?:size|length|window)|context length is only|"
    r"longer than the (?:maximum model length|model's context length)|"
    r"cannot be greater than max_model_len|too long to fit into the model|"
    r"`?inputs`? (?:tokens \+|must have less than)|exceeds? max_(?:input_len|num_tokens|seq_len)|"
    r"prompt is too long|input token count.{0,40}exceeds",
    re.IGNORECASE,
)
# What a chat template or a server's settings refuse of a conversation, and its name.
_REFUSALS = {
    "tools refused": re.compile(rf"{TOOLS_REFUSED}|tool[- _]parser|--jinja", re.IGNORECASE),
    "system role refused": re.compile(
        r"system (?:role|message)s? (?:is |are )?not supported|(?:not|n't) support (?:the )?system "
        r"(?:role|message|prompt)",
        re.IGNORECASE,
    ),
    "order of roles refused": re.compile(r"roles must alternate|unexpected role", re.IGNORECASE),
}


def past_context(message: str) -> bool:
    """Whether an error is that prompt and answer are more than the model's context holds."""
    return _PAST_CONTEXT.search(message) is not None


def refused(message: str) -> str:
    """What of a conversation an error refuses, in a few words; "" where it refuses nothing that is known."""
    return next((name for name, words in _REFUSALS.items() if words.search(message)), "")
