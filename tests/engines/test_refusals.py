"""Refusals: the errors of real APIs, and which field each is about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.engines.refusals import (
    FEATURES,
    FIELDS,
    Adaptation,
    AdaptedField,
    Refusal,
    find_feature,
    format_message,
    is_past_context,
    list_paths,
    read_refusals,
    suggest_fix,
    suggest_removal,
)

SENT = list_paths(
    {
        "model": "m",
        "messages": [],
        "max_completion_tokens": 16,
        "ignore_eos": True,
        "temperature": 0.0,
        "top_k": 4,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        "logprobs": 1,
        "min_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "chat_template_kwargs": {"enable_thinking": False},
    }
)


def openai(message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def extra(*names: str) -> dict[str, Any]:
    """As Mistral's API writes it."""
    return {
        "type": "extra_forbidden",
        "loc": ["body", *names],
        "msg": "Extra inputs are not permitted",
        "input": 1,
    }


# Taken from public reports of each API's answers, with our fields for theirs where those were other ones.
CLEAR = {
    "OpenAI": (openai("Unrecognized request argument supplied: ignore_eos"), ["ignore_eos"]),
    "OpenAI, several": (
        openai("Unrecognized request arguments supplied: ignore_eos, top_k, repetition_penalty"),
        ["ignore_eos", "top_k", "repetition_penalty"],
    ),
    "OpenAI, newer": (
        openai("Unknown parameter: 'ignore_eos'.", "ignore_eos", "unknown_parameter"),
        ["ignore_eos"],
    ),
    "OpenAI, inside": (
        openai("Unknown parameter: 'stream_options.continuous_usage_stats'.", None, "unknown_parameter"),
        ["stream_options.continuous_usage_stats"],
    ),
    "OpenAI, limit": (
        openai(
            "Unsupported parameter: 'max_completion_tokens' is not supported with this model. "
            "Use 'max_tokens' instead.",
            "max_completion_tokens",
            "unsupported_parameter",
        ),
        ["max_completion_tokens"],
    ),
    "OpenAI, temperature": (
        openai(
            "Unsupported value: 'temperature' does not support 0 with this model. "
            "Only the default (1) value is supported.",
            "temperature",
            "unsupported_value",
        ),
        ["temperature"],
    ),
    "Azure": (
        openai(
            "Unrecognized request argument supplied: stream_options. Please contact us through an Azure "
            "support request at: https://go.microsoft.com/fwlink/?linkid=2213926 for further questions."
        ),
        ["stream_options"],
    ),
    "Azure, other models": (
        {"error": {"message": "Validation error at #/stream_options: Extra inputs are not permitted"}},
        ["stream_options"],
    ),
    "Groq": (openai("property 'ignore_eos' is unsupported"), ["ignore_eos"]),
    "Groq, near": (openai("property 'top_k' is unsupported, did you mean 'top_p'?"), ["top_k"]),
    "Cerebras": (
        {
            "message": "ignore_eos: property 'ignore_eos' is unsupported\n"
            "top_k: property 'top_k' is unsupported",
            "type": "invalid_request_error",
            "param": "validation_error",
            "code": "wrong_api_format",
        },
        ["ignore_eos", "top_k"],
    ),
    "Cerebras, body": (openai("body.ignore_eos: property 'body.ignore_eos' is unsupported"), ["ignore_eos"]),
    "Fireworks": (
        {"error": {"message": "Extra inputs are not permitted, field: 'stream_options', value: {}"}},
        ["stream_options"],
    ),
    "Mistral": (
        {"object": "error", "message": {"detail": [extra("ignore_eos"), extra("max_completion_tokens")]}},
        ["ignore_eos", "max_completion_tokens"],
    ),
    "Mistral, newer": ({"detail": [extra("stream_options", "continuous_usage_stats")]},
        ["stream_options.continuous_usage_stats"]),
    "vLLM before 0.6.4": (
        {
            "object": "error",
            "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'max_completion_tokens'), "
            "'msg': 'Extra inputs are not permitted', 'input': 64}]",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        ["max_completion_tokens"],
    ),
    "Anthropic": ({"type": "error", **openai("ignore_eos: Extra inputs are not permitted")}, ["ignore_eos"]),
    "Gemini": (
        [
            {
                "error": {
                    "code": 400,
                    "message": 'Invalid JSON payload received. Unknown name "frequency_penalty": Cannot find '
                    'field.\nInvalid JSON payload received. Unknown name "top_k": Cannot find field.',
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        ["frequency_penalty", "top_k"],
    ),
    "Databricks": (
        {"error_code": "BAD_REQUEST", "message": 'Bad request: json: unknown field "stream_options"\n'},
        ["stream_options"],
    ),
    "xAI": (
        {
            "code": "Client specified an invalid argument",
            "error": "Argument not supported on this model: presencePenalty",
        },
        ["presence_penalty"],
    ),
    "xAI, newer": (
        {"error": "Model grok-4.5 does not support parameter presencePenalty."},
        ["presence_penalty"],
    ),
    "OpenRouter": (
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": json.dumps(openai("Unknown parameter: 'ignore_eos'."))},
            }
        },
        ["ignore_eos"],
    ),
    # From memory: no report of these with their exact bytes was at hand.
    "LiteLLM": (
        openai(
            "litellm.UnsupportedParamsError: groq does not support parameters: ['top_k', 'logprobs'], for "
            "model=llama. To drop these, set `litellm.drop_params=True`"
        ),
        ["top_k", "logprobs"],
    ),
    "Cohere": ({"message": "invalid request: unknown field: parameter 'ignore_eos' is not a valid field"},
        ["ignore_eos"]),
    "a server in Rust": (
        "Failed to deserialize the JSON body into the target type: unknown field `ignore_eos`, expected one "
        "of `model`, `messages`, `max_tokens` at line 1 column 80",
        ["ignore_eos"],
    ),
}  # fmt: skip

# An error that is about a value, or a limit: whether a run may go without is for a person to say.
UNCLEAR = {
    "OpenAI, limit": (
        openai("max_tokens is too large: 50000. This model supports at most 16384.", "max_completion_tokens"),
        "max_completion_tokens",
    ),
    "OpenAI, streams": (
        openai("Your organization must be verified to stream this model.", "stream", "unsupported_value"),
        "stream",
    ),
    "OpenAI, length": (
        openai(
            "This model's maximum context length is 128000 tokens.", "messages", "context_length_exceeded"
        ),
        "messages",
    ),
    "vLLM, value": (openai("temperature must be non-negative, got -1.0.", "temperature"), "temperature"),
    "DeepSeek, other name": (
        openai("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
        "",
    ),
    "Groq, a message": (openai("'messages.0' : for 'role:user' the following must be satisfied"), ""),
    "nothing": ("", ""),
    "HTML": ("<html><body>400 Bad Request</body></html>", ""),
}


def body_of(error: object) -> bytes:
    return error.encode() if isinstance(error, str) else json.dumps(error).encode()


@loop_over("name", CLEAR)
def test_the_fields_that_an_api_does_not_take_are_read(name: str) -> None:
    error, fields = CLEAR[name]
    assert read_refusals(body_of(error), SENT) == tuple(Refusal(field, clear=True) for field in fields)


@loop_over("name", UNCLEAR)
def test_what_may_be_about_a_value_is_named_and_no_more(name: str) -> None:
    error, field = UNCLEAR[name]
    assert read_refusals(body_of(error), SENT) == ((Refusal(field),) if field else ())


def test_a_field_that_was_not_sent_is_none_of_ours() -> None:
    assert read_refusals(body_of(openai("Unknown parameter: 'store'.")), SENT) == ()


@loop_over("filler", ["a", '"', "'a", "a.", "\\", "unknown field ", "extra_forbidden', 'loc': ('body', '"])
def test_a_long_error_is_read_in_no_time(filler: str) -> None:
    assert read_refusals((filler * (1 << 17)).encode(), SENT) == ()


def adaptation(*names: tuple[str, str]) -> Adaptation:
    return Adaptation(tuple(AdaptedField(name=name, sent_as=sent_as) for name, sent_as in names))


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ([("ignore_eos", "")], {"stream": True, "stream_options": {"include_usage": True, "x": 1}}),
        ([("stream_options", "")], {"stream": True, "ignore_eos": True}),
        (
            [("stream_options.x", ""), ("max_tokens", "max_completion_tokens")],
            {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}},
        ),
        (
            [("stream_options.x", ""), ("stream_options.include_usage", "")],
            {"stream": True, "ignore_eos": True},
        ),
    ],
)
def test_what_is_left_out_is_not_in_a_request(names: list[tuple[str, str]], left: dict[str, Any]) -> None:
    fields = {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True, "x": 1}}
    assert adaptation(*names).apply_to(fields) == left


def test_an_adaptation_is_reported_with_its_cost() -> None:
    lines = [
        str(field) for field in adaptation(("ignore_eos", ""), ("max_tokens", "max_completion_tokens")).fields
    ]
    assert lines == [
        "left out: ignore_eos (refused by the server); answers may end early: --min-tokens N holds their "
        "length where the server takes it",
        "renamed: max_tokens is sent as max_completion_tokens (as the server requires)",
    ]


def test_advice_speaks_of_flags() -> None:
    least = "pass --no-ignore-eos, and --min-tokens N where the server takes that"
    assert suggest_removal("ignore_eos") == least
    assert suggest_removal("temperature") == "leave out --temperature, or temperature in the profile"
    assert suggest_removal("min_tokens", {"min_tokens": 1}) == "leave min_tokens out of --extra-body"
    assert all("--" in field.advice for field in FIELDS.values())


def test_a_message_is_one_line_with_the_status() -> None:
    assert format_message(400, body_of(openai("no\nsuch"))) == "400: no such"
    assert format_message(422, b"") == "422"


@loop_over(
    ("detail", "flag"),
    [
        ("400: Unrecognized request argument supplied: ignore_eos", "pass --no-ignore-eos"),
        (
            "422: [{'type': 'extra_forbidden', 'loc': ('body', 'top_k'), 'msg': 'no'}]",
            "leave out --top-k, or",
        ),
        ("400: 'temperature' must be below 2", "leave out --temperature, or"),
        ("400: no such thing", ""),
        ("404: Unknown parameter: 'ignore_eos'", ""),
        ("", ""),
    ],
)
def test_a_failure_of_the_run_names_the_flag(detail: str, flag: str) -> None:
    assert suggest_fix(detail).startswith(flag)
    assert bool(suggest_fix(detail)) == bool(flag)


IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}
TOOLS = {"messages": [], "tools": [{"type": "function"}]}
SCHEMA = {"messages": [], "response_format": {"type": "json_schema"}}
IDS = {"prompt": [1, 2], "max_tokens": 1}


@loop_over(
    ("request_", "error", "name"),
    [
        (
            TOOLS,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            "tools",
        ),
        (TOOLS, "registry.ollama.ai/library/gemma:2b does not support tools", "tools"),
        (TOOLS, "This model doesn't support function calling", "tools"),
        (TOOLS, "'temperature' must be below 2", None),
        (IMAGE, "At most 0 image(s) may be provided in one prompt.", "images"),
        (IMAGE, "m is not a multimodal model", "images"),
        (IMAGE, "image input is not supported for this model", "images"),
        (IMAGE, "No endpoints found that support image input", "images"),
        (TOOLS, "m is not a multimodal model", None),
        (
            SCHEMA,
            "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported when the "
            "server is launched with --grammar-backend none",
            "a schema of the answer",
        ),
        (IDS, "prompt: Input should be a valid string", "token ids"),
        (IDS, "1 validation error: ('body', 'prompt'): str type expected", "token ids"),
        ({"prompt": "text"}, "prompt: Input should be a valid string", None),
        (IDS, "the model is overloaded", None),
    ],
)
def test_what_rows_ask_for_and_a_server_has_not_is_known_by_its_words(
    request_: dict[str, Any], error: str, name: str | None
) -> None:
    found = find_feature(400, body_of(openai(error)), request_)
    assert (found and found.name) == name
    assert find_feature(401, body_of(openai(error)), request_) is None
    assert find_feature(200, body_of(openai(error)), request_) is None


def test_the_advice_on_each_feature_names_a_flag() -> None:
    assert all("--" in each.advice for each in FEATURES)


def test_the_advice_on_token_ids_holds_of_traces_too() -> None:
    advice = {each.name: each.advice for each in FEATURES}["token ids"]
    assert advice.startswith("pass --prompt-format words, which sends text")


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


@loop_over("message", OTHERS)
def test_other_errors_are_no_end_of_a_conversation(message: str) -> None:
    assert not is_past_context(message)
