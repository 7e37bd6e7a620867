"""Turn refusals: the errors of servers for one turn too many, a system role, tools, and other errors."""

from __future__ import annotations

from builders.loops import loop_over
from loadgen.engines.refusals import is_past_context, name_refused_part

LONG = {
    "vLLM 0.6": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens "
    "(4000 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
    "vLLM 0.12": "'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context "
    "length is 4096 tokens and your request has 4000 input tokens (500 > 4096 - 4000).",
    "vLLM, input": "You passed 4097 input tokens and requested 1 output tokens. However, the model's context "
    "length is only 4096 tokens, resulting in a maximum input length of 4095 tokens.",
    "vLLM, engine": "The decoder prompt (length 9000) is longer than the maximum model length of 4096.",
    "vLLM, limit": "max_tokens=5000 cannot be greater than max_model_len=4096.",
    "SGLang": "Requested token count exceeds the model's maximum context length of 8192 tokens. You "
    "requested a total of 50001 tokens",
    "SGLang, input": "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "llama.cpp": "request (4200 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "llama.cpp, type": '{"code":400,"type":"exceed_context_size_error","n_prompt_tokens":4200,"n_ctx":4096}',
    "llama.cpp 2024": "the request exceeds the available context size. try increasing the context size",
    "llama-cpp-python": "Requested tokens (5000) exceed context window of 2048",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000",
    "Anthropic": "prompt is too long: 208310 tokens > 200000 maximum",
    "Gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "the embedded engine": "The maximum context length is 4096 tokens; 4000 of prompt and 200 of "
    "output are 4200.",
}
OTHERS = (
    "max_tokens is too large: 50000. This model supports at most 16384.",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "temperature must be non-negative, got -1.0.",
    "CUDA out of memory",
    "",
)


@loop_over("name", LONG)
def test_a_prompt_past_the_context_is_known_by_the_servers_words(name: str) -> None:
    assert is_past_context(f"400: {LONG[name]}")
    assert name_refused_part(LONG[name]) == ""


@loop_over("message", OTHERS)
def test_other_errors_are_no_end_of_a_conversation(message: str) -> None:
    assert not is_past_context(message)
    assert name_refused_part(message) == ""


@loop_over(
    ("message", "what"),
    [
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser', "tools refused"),
        ("tools param requires --jinja flag", "tools refused"),
        ("this model does not support tools", "tools refused"),
        ("System role not supported", "system role refused"),
        ("Only user and assistant roles are allowed: the model does not support system messages",
         "system role refused"),
        ("Conversation roles must alternate user/assistant/user/assistant/...", "order of roles refused"),
    ],
)  # fmt: skip
def test_what_a_conversation_is_refused_for_has_a_name(message: str, what: str) -> None:
    assert name_refused_part(message) == what
