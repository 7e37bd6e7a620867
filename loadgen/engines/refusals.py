"""Refusals: the field of a request that a server refuses, by the words of its error, and what to do."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from loadgen.base import untrusted
from loadgen.engines.engines import ENGINES

REFUSING = (400, 422)  # statuses of a request that the server understood and does not accept as it is
_ABOUT_THE_KEY = (401, 403, 407, 429)
_MOST_BYTES = 1 << 14  # of an error that is read


class Field(msgspec.Struct, frozen=True):
    """A field of a request that a server may refuse: what to type to omit it, and if a run may go without."""

    advice: str
    cost: str = ""  # of leaving it out; "" where it cannot be left out
    instead: str = ""  # the other name of the same field


_UNCOUNTED = "no usage in the responses: --tokenizer DIR counts their tokens, else chunks are counted"
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")
# Fields whose loss keeps the workload are left out without asking; the rest ends the run with the advice.
FIELDS: dict[str, Field] = {
    "ignore_eos": Field(
        "pass --no-ignore-eos, and --min-tokens N where the server takes that",
        "responses may end early: --min-tokens N holds their length where the server takes it",
    ),
    "stream_options": Field("pass --disable-stream", _UNCOUNTED),
    "stream_options.include_usage": Field("pass --disable-stream", _UNCOUNTED),
    "stream_options.continuous_usage_stats": Field(
        "leave out --continuous-usage", "tokens are counted once a response, by its usage"
    ),
    **{
        name: Field(f"leave out --{name.replace('_', '-')}, or {name} in the profile", "its default applies")
        for name in (*_SAMPLING, "repetition_penalty")
    },
    "logprobs": Field("leave out --logprobs"),
    "min_tokens": Field("leave out --min-tokens, or min_tokens in the profile"),
    "max_completion_tokens": Field("lower --random-output-len", instead="max_tokens"),
    "max_tokens": Field("lower --random-output-len", instead="max_completion_tokens"),
    "chat_template_kwargs": Field("leave out --chat-template-kwargs"),
    "cache_salt": Field(
        "pass --seed N: a run with a seed of its own has no cache_salt",
        "a prefix cache may know the texts of an earlier run",
    ),
    "stream": Field("pass --disable-stream"),
    "prompt": Field("check --prompt-format (words, corpus and text-vllm send text) and --random-input-len"),
    "messages": Field("check --random-input-len"),
    "input": Field("check --random-input-len"),
    "max_output_tokens": Field("lower --random-output-len"),
    "model": Field("check --model"),
}


TOOLS_REFUSED = (
    r"enable-auto-tool-choice|tool[- _](?:choice|call)|\btools\b.{0,60}not supported|"
    r"(?:not|n't) support (?:the use of )?(?:tool|function)"
)
TOOLS_UNREAD = (
    rf"{TOOLS_REFUSED}|tool[- _]parser|--jinja"  # by a server without a parser or template for them
)


class Feature(msgspec.Struct, frozen=True):
    """A feature that a file's rows may use and a server may lack: how it is refused, and what to do."""

    name: str
    asked: bytes  # a pattern of requests that ask for it
    words: str  # a pattern of the errors that refuse it
    advice: str


_LEAVE_OUT = "or leave those rows out of the file"
FEATURES = (
    Feature(
        "tools",
        rb'"tools":',
        TOOLS_REFUSED,
        "start the server with its tool parser, --launch vllm --server-args '--enable-auto-tool-choice "
        f"--tool-call-parser NAME', {_LEAVE_OUT}",
    ),
    Feature(
        "a system prompt",
        rb'"role":"system"|"(?:instructions|system)":"',
        r"system.{0,40}(?:not|n't) (?:be )?(?:supported|allowed)|(?:not|n't) support.{0,30}system|"
        r"roles must alternate",
        "start the server with a chat template that takes one (vLLM, SGLang: --chat-template), or give "
        "conversations without `system`",
    ),
    Feature(
        "images",
        rb'"image_url":|"type":"image"',
        r"multi-?modal|at most 0 image|image input|image_url|(?:not|n't) support .{0,30}(?:image|vision)|"
        r"no endpoints found that support image",
        "serve a vision model (--model; llama.cpp: --mmproj), in vLLM with --limit-mm-per-prompt, or "
        f"leave out --image-size, {_LEAVE_OUT}",
    ),
    Feature(
        "a schema of the response",
        rb'"(?:response_format|guided_\w+|structured_outputs)":',
        r"json_schema|response_format|guided|structured|grammar|xgrammar|outlines",
        "start the server with a grammar backend (vLLM: --structured-outputs-config, SGLang: "
        f"--grammar-backend), {_LEAVE_OUT}",
    ),
    Feature(
        "token ids",
        rb'"(?:prompt|input_ids)":\[\d',
        r"prompt.{0,80}(?:string|\bstr\b)|token ?ids.{0,40}not (?:supported|allowed)|string_type",
        "pass --prompt-format words, which sends text (of what is not a trace, corpus and text-vllm do too); "
        "of a file of ids, give rows of text to --dataset-path",
    ),
)


class AdaptedField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field that is omitted or renamed because the server refused it, and the server's words."""

    name: str  # inside another one: `a.b`
    sent_as: str = ""  # its other name; "" where it is left out
    why: str = ""  # the status and the message

    def __str__(self) -> str:
        if self.sent_as:
            return f"renamed: {self.name} is sent as {self.sent_as} (as the server requires)"
        cost = FIELDS[self.name].cost if self.name in FIELDS else ""
        return f"left out: {self.name} (refused by the server)" + (f"; {cost}" if cost else "")


class Adaptation(msgspec.Struct, frozen=True):
    """The fields that all requests of a run omit or rename because the server refused them."""

    fields: tuple[AdaptedField, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fields)

    @property
    def left_out(self) -> frozenset[str]:
        """The names of the fields that are omitted."""
        return frozenset(field.name for field in self.fields if not field.sent_as)

    @property
    def limit_field(self) -> str:
        """The name under which an answer's length limit is sent; "" for the API's usual name."""
        return next((field.sent_as for field in reversed(self.fields) if field.sent_as), "")

    def apply_to(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's fields without those left out and tables so emptied; renamed ones are kept."""
        kept = {name: value for name, value in fields.items() if name not in self.left_out}
        for outer, _, inner in (name.partition(".") for name in self.left_out):
            if inner and isinstance(kept.get(outer), dict):
                kept[outer] = {name: value for name, value in kept[outer].items() if name != inner}
                if not kept[outer]:
                    del kept[outer]
        return kept


class Refusal(msgspec.Struct, frozen=True):
    """A field that a server's error refuses, as far as the error names one."""

    name: str = ""  # of the request's fields; "" where the error names none of them
    clear: bool = False  # that it does not take the field, or any value of it; else the value may be wrong


# A name in quotes of any kind, after a path's beginning: `body.`, `#/`, `$.`
_NAME = r"""["'`#/$]{0,3}(?:body[./])?([\w.]{1,64})["'`]?"""
# Servers refuse fields in these words; the group holds the fields' names.
_WORDS = (
    r"unrecognized request arguments? supplied: (\w+(?:, \w+)*)",  # OpenAI, Azure
    rf"unknown parameter:? {_NAME}",  # OpenAI, Azure, OpenRouter
    rf"unsupported parameter(?:\(s\))?:? {_NAME}",  # OpenAI's reasoning models; NVIDIA
    rf"unsupported value: {_NAME} does not support .{{1,40}} with this model\. only the default",  # the same
    rf"property {_NAME} is unsupported",  # Groq, Cerebras
    rf"extra inputs are not permitted, field: {_NAME}",  # Fireworks
    # Mistral, vLLM before 0.6, SGLang's and others' pydantic: as JSON, or as Python prints it
    r"""extra_forbidden["'], ?["']loc["']: ?[\[(]["']body["'], ?["'](\w+(?:["'], ?["']\w+)?)["'][\])]""",
    rf"{_NAME}: extra inputs are not permitted",  # Anthropic, Bedrock, Azure's other models
    rf"unknown name {_NAME}(?: at [^:]{{1,80}})?: cannot find field",  # Gemini, Vertex
    rf"unknown field:? (?:parameter )?{_NAME}",  # Databricks, Cohere, servers in Go and Rust
    rf"argument not supported on this model: {_NAME}",  # xAI
    rf"does not support (?:the )?parameter:? {_NAME}",  # xAI
    r"does not support parameters: ?[\[{]([^\]}]+)",  # LiteLLM
)
_PARAM = re.compile(r"""["']param["']: ?["']([\w.]+)["']""")
_QUOTED = re.compile(r"""["'`]([\w.]{1,64})["'`]""")
_OTHER_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")


def read_refusals(body: bytes, sent: Collection[str]) -> tuple[Refusal, ...]:
    """Read which `sent` fields an error refuses in known words, else the first that it quotes; () if none.

    The error's first 16 KiB are read. `sent` has the request's own fields, and as `a.b` those in its tables.
    """
    text = body[:_MOST_BYTES].decode("utf-8", "replace").replace('\\"', '"')
    matches = (match for words in _WORDS for match in re.finditer(words, text, re.IGNORECASE))
    unknown = [name for match in matches for name in _split_names(match[1])]
    known = dict.fromkeys(field for name in unknown if (field := _match_field(name, sent)))
    if known:
        # A field in a table counts instead of the table, whose rest may be taken.
        tables = {name for name in known if any(other.startswith(f"{name}.") for other in known)}
        return tuple(Refusal(name, clear=True) for name in known if name not in tables)
    named = (match[1] for pattern in (_PARAM, _QUOTED) for match in pattern.finditer(text))
    return next(((Refusal(field),) for name in named if (field := _match_field(name, sent))), ())


def find_feature(status: int, body: bytes, request: Mapping[str, Any]) -> Feature | None:
    """Find the first feature that a request uses and an error refuses by its words.

    None if there is none, or the status is below 400 or about the key (401, 403, 407, 429).
    """
    if status < REFUSING[0] or status in _ABOUT_THE_KEY:
        return None
    text, sent = body[:_MOST_BYTES].decode("utf-8", "replace"), msgspec.json.encode(request)
    used = (each for each in FEATURES if re.search(each.asked, sent))
    return next((each for each in used if re.search(each.words, text, re.IGNORECASE)), None)


def list_paths(request: Mapping[str, Any]) -> frozenset[str]:
    """List the names of a request's fields, those in its tables as `a.b`."""
    inner = (f"{name}.{key}" for name, table in request.items() if isinstance(table, dict) for key in table)
    return frozenset((*request, *inner))


def suggest_removal(name: str, extra: Collection[str] = ()) -> str:
    """Suggest the flag to type so that a field is not sent; `extra` are the keys of --extra-body."""
    if name.partition(".")[0] in extra:
        return f"leave {name} out of --extra-body"
    return FIELDS[name].advice if name in FIELDS else "--print-request shows what is sent"


def suggest_fix(detail: str) -> str:
    """Suggest the flag that fixes a request by its failure's detail, `400: error` (or 422); "" if unknown."""
    status = untrusted.read_digits(detail[:3])
    refusals = read_refusals(detail.encode(), FIELDS) if status in REFUSING else ()
    return FIELDS[refusals[0].name].advice if refusals else ""


def format_message(status: int, body: bytes) -> str:
    """Format an HTTP status and the server's error message on one line, cut to 200 characters."""
    return untrusted.read_line(f"{status}: {untrusted.read_error_text(body)}".rstrip(": "), 200)


def _split_names(written: str) -> Iterator[str]:
    """Split a list of field names; camelCase becomes snake_case, a nested path `a.b`."""
    if re.fullmatch(r"""\w+["'], ?["']\w+""", written):
        written = re.sub(r"""["'], ?["']""", ".", written)
    for name in re.findall(r"[\w.]+", written):
        yield _OTHER_CASE.sub("_", name.strip(".")).lower()


def _match_field(name: str, sent: Collection[str]) -> str:
    """Match a name in an error with a sent field, `b` also with `a.b`; "" if none matches."""
    if name in sent:
        return name
    return next((field for field in sorted(sent) if field.endswith(f".{name}")), "")


# Servers say in these words that prompt and output exceed the model's context: the engines of the table,
# llama-cpp-python, TGI, TensorRT-LLM, OpenAI, Anthropic, Gemini, Mistral, and the embedded engine.
_PAST_CONTEXT = (
    r"maximum context length|context_length_exceeded|too long to fit into the model|"
    r"`?inputs`? (?:tokens \+|must have less than)|exceeds? max_(?:input_len|num_tokens|seq_len)|"
    r"prompt is too long|input token count.{0,40}exceeds|"
    + "|".join(engine.past_context for engine in ENGINES if engine.past_context)
)  # compiled when an error is read, as most runs read none


def is_past_context(message: str) -> bool:
    """Whether an error says that prompt and answer exceed the model's context."""
    return re.search(_PAST_CONTEXT, message, re.IGNORECASE) is not None
