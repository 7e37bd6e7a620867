"""Request settings: what each request asks, in which API, how long it may take, how figures are judged."""

import argparse
import json
from functools import partial
from typing import Annotated, Any, Literal, get_args

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from loadgen.base import parsing, untrusted
from loadgen.base.errors import UsageError
from loadgen.base.parsing import parse_with, suggest_name
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import quote_value
from loadgen.settings.setting import OUTPUT, REQUESTS, RUN, SERVER, Makes, Setting, list_rows

Backend = Literal["openai", "openai-chat", "openai-responses", "vllm", "sglang", "anthropic-messages"]
APIS: tuple[str, ...] = get_args(Backend)
CHAT_APIS = ("openai-chat", "openai-responses", "anthropic-messages")  # that take messages by role
API_PATHS = {  # how they end
    "openai-chat": "/chat/completions",
    "openai-responses": "/responses",
    "sglang": "/generate",
    "anthropic-messages": "/messages",
}
_FOLLOWING = ("openai", "vllm")  # of completions, unless the endpoint is another API's
# Ours, and what vLLM, its benchmark_serving.py, SGLang, aiperf and guidellm call the same API.
_NAMES = {
    "openai": "openai-comp openai-completions completions sglang-oai lmdeploy scalellm llama.cpp openai_http",
    "openai-chat": "vllm-chat openai-chat-completions chat sglang-oai-chat lmdeploy-chat",
    "openai-responses": "responses",
    "sglang": "sglang-native",
    "anthropic-messages": "messages anthropic",
}
_NOT_TEXT = "only text generation is measured: --backend openai or openai-chat"
_OWN_API = "its own API is not sent; its OpenAI server is measured with --backend openai or openai-chat"
_REASONS = {
    "audio is not sent: --backend openai-chat sends text": "openai-audio",
    _NOT_TEXT: (
        "openai-embeddings openai-embeddings-chat openai-embeddings-clip openai-embeddings-vlm2vec "
        "infinity-embeddings infinity-embeddings-clip vllm-pooling vllm-rerank vllm-embedding "
        "sglang-embedding embeddings chat_embeddings"
    ),
    "TGI's own /generate_stream is not sent; it has OpenAI's too: --backend openai-chat": (
        "tgi huggingface_generate"
    ),
    _OWN_API: "tensorrt-llm trt deepspeed-mii gserver truss",
    "an engine inside the client is not measured, servers are: start it with --launch vllm": (
        "vllm_python vllm_python_async vllm_python_batch"
    ),
}
_CLIENTS = {  # by the port that a client measures where it is given none, whose it is, and its names of APIs
    (30000, "SGLang's"): "sglang sglang-native sglang-oai sglang-oai-chat",
    (23333, "LMDeploy's"): "lmdeploy lmdeploy-chat",
}
_VLLMS = 8000, "vLLM's"  # of any other name
_PORTS = {name: port for (port, _), names in _CLIENTS.items() for name in names.split()}
_OWNERS = dict([*_CLIENTS, _VLLMS])
API_ALIASES = {name: ours for ours, names in _NAMES.items() for name in names.split()}
REFUSED_APIS = {name: reason for reason, names in _REASONS.items() for name in names.split()}


def find_backend(name: str) -> str:
    """Translate a client's name of an API (`vllm`, `openai-chat`) to ours; raises ValueError with advice."""
    if name in APIS:
        return name
    if name in API_ALIASES:
        return API_ALIASES[name]
    if name in REFUSED_APIS:
        raise ValueError(f"{name}: {REFUSED_APIS[name]}")
    if "=" in name:  # which may hold a key
        raise ValueError(
            "guidellm's settings are flags here: --base-url URL, --backend openai or openai-chat"
        )
    hint = suggest_name(name, [*APIS, *API_ALIASES]) or f": choose from {', '.join(APIS)}"
    raise ValueError(f"{quote_value(name)} is no API that is sent{hint}")


def check_backend(name: str) -> str:
    """Return a client's name of an API that is sent, unchanged; raises ValueError with advice for others."""
    find_backend(name)
    return name


def find_default_port(backend: str | None, endpoint_type: str | None = None, endpoint: str = "") -> int:
    """Return the default port of the client that uses this name of an API; vLLM's 8000 for others.

    The name is `backend`, or `endpoint_type` if that is None, or `sglang` with an endpoint of completions.
    """
    if backend is None or (backend == "sglang" and endpoint.endswith("completions")):
        backend = endpoint_type
    return _PORTS.get(backend or "", _VLLMS[0])


def name_port_owner(port: int | None) -> str:
    """Name the client whose default a port is, as `SGLang's`; `vLLM's` for any other."""
    return _OWNERS.get(port or 0, _VLLMS[1])


def choose_backend(backend: str | None, endpoint_type: str | None, endpoint: str) -> str | None:
    """Choose our API from --backend, --endpoint-type and --endpoint; None without a name.

    --endpoint-type decides if both mean one API, or --backend one of completions, often a label in 2025;
    other two raise UsageError, an unknown name ValueError. `sglang` with `/completions` is `openai`.
    """
    labels = backend, endpoint_type
    backend, endpoint_type = (None if name is None else find_backend(name) for name in labels)
    if backend is None or endpoint_type is None:
        name = backend or endpoint_type
    elif backend in (endpoint_type, *_FOLLOWING):
        name = endpoint_type
    else:
        raise UsageError(
            f"--backend {labels[0]} and --endpoint-type {labels[1]} are two APIs: leave out one of them"
        )
    if name == "sglang" and endpoint.endswith("completions"):
        return "openai"
    return name


def _parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; raises ArgumentTypeError, which shows the text without secrets."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{quote_value(hide_secrets(text))} is not a JSON object")
    return value


def _check_sendable(value: dict[str, Any]) -> dict[str, Any]:
    """Return a table of a request's fields; raises ValueError if too deep, or not strict JSON, as NaN."""
    if untrusted.is_too_deep(value):
        raise ValueError(f"is more than {untrusted.DEEPEST} tables and lists deep")
    try:
        json.dumps(value, allow_nan=False)
        msgspec.json.encode(value)  # which takes no halves of a surrogate pair, and 64 bits at most
    except (TypeError, OverflowError, UnicodeError) as error:
        raise ValueError(f"cannot be sent as JSON: {error}") from None
    except ValueError:
        raise ValueError("cannot be sent as JSON: a number is NaN or infinite") from None
    return value


def _convert_count(value: Any) -> Any:
    """Return an int, as TOML may give a count, as text; other values unchanged."""
    return str(value) if type(value) is int else value


# fmt: off
_request = partial(Setting, Makes.REQUEST, group=REQUESTS, rank=1)
_printed = partial(Setting, Makes.NOTHING, group=OUTPUT, rank=1)
_client = partial(Setting, Makes.CLIENT)


def _sample(about: str, common: bool = False) -> Setting:
    """Make the setting of a sampling parameter, which a server has a default of."""
    return _request(f"{about}; default: the profile's, else the server's own", metavar="X", common=common)


class RequestKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of the fields that each request sends to the server."""

    backend: Annotated[Backend, _request("API of the requests (default openai: completions); sglang: its "
        "own /generate", group=SERVER, read=parse_with(check_backend), metavar="{" + ",".join(APIS) + "}",
        names_server=True, rank=0, common=True)] = "openai"
    stream: Annotated[bool, _request("request whole outputs, of which E2E is the only latency",
        flag="--disable-stream", rank=2)] = True
    continuous_usage: Annotated[bool, _request("request the token count with every chunk",
        rank=2)] = False
    ignore_eos: Annotated[bool, _request("generate every planned token; default of random prompts and "
        "traces, where it is supported", rank=0, common=True)] = True
    temperature: Annotated[float | None, _sample("temperature of sampling", common=True)] = None
    top_p: Annotated[float | None, _sample("share of probability that tokens are drawn from")] = None
    top_k: Annotated[int | None, Field(ge=-1, le=parsing.MOST_INT), _sample(
        "number of likeliest tokens that are drawn from")] = None
    min_p: Annotated[float | None, _sample("least probability of a token, as a share of the "
        "likeliest's")] = None
    frequency_penalty: Annotated[float | None, _sample("penalty of a token for each time that it has "
        "occurred")] = None
    presence_penalty: Annotated[float | None, _sample("penalty of a token that has occurred")] = None
    repetition_penalty: Annotated[float | None, _sample("factor against tokens that have occurred")] = None
    logprobs: Annotated[int | None, Field(ge=-1, le=parsing.MOST_INT), _request(
        "request log-probabilities of N tokens at each place (default: none)", metavar="N")] = None
    min_tokens: Annotated[int | None, Field(ge=0, le=parsing.MOST_TOKENS), _request(
        "least output tokens, for servers that refuse --ignore-eos", metavar="N", rank=0)] = None
    extra_body: Annotated[dict[str, Any], AfterValidator(_check_sendable), _request("fields that are "
        "merged into every request", read=_parse_json_object, metavar="JSON")] = {}
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(_check_sendable), _request(
        "variables of the chat template, sent with every chat request", read=_parse_json_object,
        metavar="JSON")] = {}
    # Seconds; 0: none.
    request_timeout: Annotated[float, Field(ge=0, le=parsing.MOST_SECONDS), _client(
        "longest time of a request in seconds, 0: none (default 21600)", group=RUN, rank=1,
        metavar="S")] = 21600.0
    # Seconds without a token; 0: none.
    stall_timeout: Annotated[float, Field(ge=0, le=parsing.MOST_SECONDS), _client(
        "longest time without a token in seconds, 0: none (default 300)", group=RUN, rank=1,
        metavar="S")] = 300.0


class FigureKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of which figures are printed, and of the objectives a run is judged by."""

    percentile_metrics: Annotated[str, _printed("figures to print, of ttft, tpot, itl, e2el and the other "
        "latencies and speeds of docs/metrics.md (default ttft,tpot,itl)",
        metavar="LIST")] = "ttft,tpot,itl"
    metric_percentiles: Annotated[str, _printed("percentiles to print (default 99)", metavar="LIST")] = "99"
    goodput: Annotated[tuple[str, ...], _printed("objectives of a request, as ttft:500 tpot:50; also "
        "e2el:9000 and tps_user:30", metavar="NAME:LIMIT", common=True)] = ()
    slo: Annotated[str, _printed("judge percentiles, as 'ttft p90 < 500ms'; also 'tps_user p10 > 30', "
        "mlperf/llama3.1-8b, agentperf/gpt-oss-120b-1", metavar="TEXT", common=True)] = ""
    # What the steady state leaves out at its begin, as requests (20) or seconds (5s), and at its end.
    warmup: Annotated[str, BeforeValidator(_convert_count), _client("exclude the first N requests or S "
        "seconds from the steady state", group=OUTPUT, rank=3, metavar="N|Ss")] = ""
    cooldown: Annotated[str, BeforeValidator(_convert_count), _client("exclude the last N requests or S "
        "seconds from the steady state", group=OUTPUT, rank=3, metavar="N|Ss")] = ""
    table: Annotated[Literal["throughput"] | None, Setting(Makes.NOTHING)] = None
# fmt: on

SAMPLING = tuple(
    row.name for row in list_rows(RequestKeys) if row.default is None and row.makes is Makes.REQUEST
)
