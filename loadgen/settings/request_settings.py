"""Request settings: those of what each request asks, how long it may take, and how figures are judged."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any, Literal

import msgspec

from loadgen.base import parsing, untrusted
from loadgen.base.parsing import parse_with
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import quote_value
from loadgen.settings import backends
from loadgen.settings.setting import NO_KEYWORD, OUTPUT, REQUESTS, RUN, SERVER, KeyRows, Makes, setting


def _parse_json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{quote_value(hide_secrets(text))} is not a JSON object")
    return value


def _check_sendable(value: dict[str, Any]) -> dict[str, Any]:
    """Return a table of a request's fields; raises ValueError if strict JSON cannot hold it, NaN for one."""
    if untrusted.is_too_deep(value):
        raise ValueError(f"is more than {untrusted.DEEPEST} tables and lists deep")
    try:
        json.dumps(value, allow_nan=False)
        msgspec.json.encode(value)  # which takes no halves of a surrogate pair, and 64 bits at most
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"cannot be sent as JSON: {error}") from None
    return value


def _write_count(value: Any) -> Any:
    """Turn a number that TOML gives as an integer into text; other values pass."""
    return str(value) if type(value) is int else value


# fmt: off
_request = partial(setting, Makes.REQUEST, group=REQUESTS, rank=1)
_sampling = partial(_request, None, "default: the profile's, else the server's own", metavar="X")
_number = partial(_sampling, read=float)
_printed = partial(setting, Makes.NOTHING, group=OUTPUT, rank=1)
_client = partial(setting, Makes.CLIENT)


class RequestKeys(KeyRows, frozen=True):
    """The settings of the fields that each request sends to the server."""

    backend: Literal["openai", "openai-chat", "vllm", "sglang"] = _request("openai",
        "API (default openai: completions; sglang: its own /generate)", group=SERVER,
        read=parse_with(backends.check_backend), metavar="{" + ",".join(backends.OWN) + "}",
        names_server=True, rank=0, common=True)
    stream: bool = _request(True, "whole responses: E2E latency only", flag="--disable-stream",
        action="store_false", rank=2)
    continuous_usage: bool = _request(False, "request the token count with every message",
        action="store_true", rank=2)
    ignore_eos: bool = _request(True, "generate every planned token (default of random prompts and traces, "
        "where supported)", action=argparse.BooleanOptionalAction, rank=0, common=True)
    temperature: float | None = _number(common=True)
    top_p: float | None = _number()
    top_k: int | None = _sampling(read=int, least=-1, most=parsing.MOST_INT)
    min_p: float | None = _number()
    frequency_penalty: float | None = _number()
    presence_penalty: float | None = _number()
    repetition_penalty: float | None = _number()
    logprobs: int | None = _request(None, "request those of N tokens at each place (default: none)",
        read=int, metavar="N", least=-1, most=parsing.MOST_INT)
    min_tokens: int | None = _request(None, "output tokens at least, where --ignore-eos is refused",
        read=int, metavar="N", least=0, most=parsing.MOST_TOKENS, rank=0)
    extra_body: dict[str, Any] = _request({}, "merged into every request", read=_parse_json_object,
        metavar="JSON", check=_check_sendable, swept=False)
    chat_template_kwargs: dict[str, Any] = _request({}, "variables of the chat template, sent with every "
        "chat request", read=_parse_json_object, metavar="JSON", check=_check_sendable, swept=False)
    # Seconds; 0: none.
    request_timeout: float = _client(21600.0, "seconds of a request, 0: none (default 21600)", group=RUN,
        rank=1, read=float, metavar="S", least=0, most=parsing.MOST_SECONDS)
    # Seconds without a token; 0: none.
    stall_timeout: float = _client(300.0, "seconds without a token, 0: none (default 300)", group=RUN,
        rank=1, read=float, metavar="S", least=0, most=parsing.MOST_SECONDS)


class FigureKeys(KeyRows, frozen=True):
    """The settings of which figures are printed, and of the objectives a run is judged by."""

    percentile_metrics: str = _printed("ttft,tpot,itl", "of ttft, tpot, itl, e2el and the other "
        "latencies and speeds of docs/metrics.md (default ttft,tpot,itl)", metavar="LIST", swept=False)
    metric_percentiles: str = _printed("99", "default 99", metavar="LIST", swept=False)
    goodput: tuple[str, ...] = _printed((), "objectives, as ttft:500 tpot:50 e2el:9000", nargs="+",
        metavar="NAME:MS", keyword="list[str]", swept=False, common=True)
    slo: str = _printed("", "judge percentiles: 'ttft p90 < 500ms, tpot p90 < 50ms', or "
        "mlperf/llama3.1-8b", metavar="TEXT", common=True)
    # What the steady state leaves out at its begin, as requests (20) or seconds (5s), and at its end.
    warmup: str = _client("", "exclude the first N requests or S seconds from the steady state",
        group=OUTPUT, rank=3, metavar="N|Ss", convert=_write_count)
    cooldown: str = _client("", "exclude the last ones", group=OUTPUT, rank=3, metavar="N|Ss",
        convert=_write_count)
    table: Literal["throughput"] | None = setting(Makes.NOTHING, None, keyword=NO_KEYWORD, swept=False)
# fmt: on

SAMPLING = tuple(row.name for row in RequestKeys.rows if row.default is None and row.makes is Makes.REQUEST)
