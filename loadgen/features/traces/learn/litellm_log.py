"""LiteLLM's logs: rows of its spend logs, and what its JSON loggers write (StandardLoggingPayload)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from loadgen.base import untrusted
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.traces.learn.calls import (
    Call,
    Rows,
    SkippedRow,
    ValueFault,
    read_sampling,
    read_size,
    read_time_ns,
    write_messages,
)
from loadgen.features.traces.learn.log_file import LogFile

NO_ANSWER, NO_MODEL = "failed: no answer", "no request for an answer of a language model"
_KINDS = ("completion", "messages", "responses", "generate_content", "pass_through")
_CACHED = "answered from LiteLLM's own cache"
_LISTS = ("data", "logs", "spend_logs")
_AWAY = ("client disconnected", "cancelled", "499")


def is_litellm(lines: list[str]) -> bool:
    """Whether the first rows of a log, or a list that it is, have the keys of LiteLLM's."""
    head = "".join(lines)
    return '"startTime"' in head and '"prompt_tokens"' in head and '"completion_tokens"' in head


def read_litellm(log: LogFile) -> Rows:
    """Yield the calls of a log, one JSON object a line, or all in a list; raises UsageError with the row."""
    for row, fields in _read_objects(log):
        try:
            yield row, _read_call(fields)
        except ValueFault as fault:
            raise log.refusal(str(fault), row) from None


def _read_objects(log: LogFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, object) of each line, or of a text that is one list, which is read whole."""
    lines = log.read_lines()
    number, first = next(lines)
    decoded = _decode(first)
    if isinstance(decoded, dict) and "startTime" in decoded:
        yield number, decoded
        for row, line in lines:
            value = _decode(line)
            if not isinstance(value, dict):
                raise log.refusal("is no JSON object: is the log cut?", row)
            yield row, value
        return
    value = decoded if decoded is not None else _decode("\n".join([first, *(line for _, line in lines)]))
    if isinstance(value, dict):
        value = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
    if not isinstance(value, list):
        raise log.refusal("is neither JSON rows of LiteLLM nor a list of them", number)
    for row, fields in enumerate(value, 1):
        if not isinstance(fields, dict):
            raise log.refusal("is no JSON object", row)
        yield row, fields


def _decode(text: str) -> Any:
    """Decode JSON; None of what is none."""
    try:
        return msgspec.json.decode(text)
    except NOT_JSON:
        return None


def _read_call(fields: dict[str, Any]) -> Call | SkippedRow:
    """Read one row; raises ValueFault."""
    kind = str(fields.get("call_type") or "completion")
    if not any(name in kind for name in _KINDS):
        return SkippedRow(NO_MODEL)
    if str(fields.get("cache_hit")).lower() == "true":
        return SkippedRow(_CACHED)
    failed = fields.get("status", "success") == "failure"
    cancelled = failed and any(word in _read_fault(fields).lower() for word in _AWAY)
    if failed and not cancelled:
        return SkippedRow(NO_ANSWER)
    begin_ns, end_ns = (read_time_ns(fields.get(key)) for key in ("startTime", "endTime"))
    if end_ns < begin_ns:
        raise ValueFault("endTime is before startTime")
    body = _read_nested(fields.get("proxy_server_request"))
    body = body.get("body", body) if isinstance(body, dict) else {}
    asked = next(
        (
            found
            for key in ("model_parameters", "modelParameters")
            if (found := _read_nested(fields.get(key)))
        ),
        body,
    )
    session = fields.get("session_id") or fields.get("trace_id") or ""
    return Call(
        begin_ns=begin_ns,
        end_ns=end_ns,
        input_len=read_size(fields.get("prompt_tokens")),
        output_len=read_size(fields.get("completion_tokens")),
        output_limit=read_size(untrusted.read_mapping(asked).get("max_tokens")),
        text=write_messages(_read_nested(fields.get("messages"))) or write_messages(body),
        conversation=str(session),
        sure=False,  # LiteLLM makes an id for each call that brings none
        cancelled=cancelled,
        sampling=read_sampling(untrusted.read_mapping(asked)),
    )


def _read_fault(fields: dict[str, Any]) -> str:
    """Return what a failed row says of its error; "" where it says nothing."""
    metadata = untrusted.read_mapping(_read_nested(fields.get("metadata")))
    error = untrusted.read_mapping(fields.get("error_information") or metadata.get("error_information"))
    return " ".join(str(error.get(key, "")) for key in ("error_code", "error_class", "error_message"))


def _read_nested(value: Any) -> Any:
    """Return a value, decoded where it is a text of JSON, as the spend logs keep objects."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        decoded = _decode(value)
        return value if decoded is None else decoded
    return value
