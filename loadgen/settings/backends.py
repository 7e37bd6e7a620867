"""Backends: other clients' names for the APIs that requests are sent in, and for those that they are not."""

from __future__ import annotations

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.text import quote_value

OWN = ("openai", "openai-chat", "vllm", "sglang")
FOLLOWING = ("openai", "vllm")  # of completions, unless the endpoint is another API's
# Ours, and what vLLM, its benchmark_serving.py, SGLang, aiperf and guidellm call the same API.
_NAMES = {
    "openai": "openai-comp openai-completions completions sglang-oai lmdeploy scalellm llama.cpp openai_http",
    "openai-chat": "vllm-chat openai-chat-completions chat sglang-oai-chat lmdeploy-chat",
    "sglang": "sglang-native",
}
_NOT_TEXT = "only text generation is measured: --backend openai or openai-chat"
_OWN_API = "its own API is not sent; its OpenAI server is measured with --backend openai or openai-chat"
_REASONS = {
    "audio is not sent: --backend openai-chat sends text": "openai-audio",
    "/v1/responses is not sent: --backend openai-chat": "openai-responses responses",
    "/v1/messages is not sent: --backend openai-chat": "messages",
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
ALIASES = {name: ours for ours, names in _NAMES.items() for name in names.split()}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}


def find_backend(name: str) -> str:
    """Translate a client's name of an API (`vllm`, `openai-chat`) to ours; raises ValueError with advice."""
    if name in OWN:
        return name
    if name in ALIASES:
        return ALIASES[name]
    if name in REFUSED:
        raise ValueError(f"{name}: {REFUSED[name]}")
    if "=" in name:  # which may hold a key
        raise ValueError(
            "guidellm's settings are flags here: --base-url URL, --backend openai or openai-chat"
        )
    hint = suggest_name(name, [*OWN, *ALIASES]) or f": choose from {', '.join(OWN)}"
    raise ValueError(f"{quote_value(name)} is no API that is sent{hint}")


def check_backend(name: str) -> str:
    """Return a client's name of an API that is sent, unchanged; raises ValueError with advice for others."""
    find_backend(name)
    return name


def find_default_port(backend: str | None, endpoint_type: str | None = None, endpoint: str = "") -> int:
    """Return the default port of the client that uses these names of an API; vLLM's 8000 for others."""
    if backend is None or (backend == "sglang" and endpoint.endswith("completions")):
        backend = endpoint_type
    return _PORTS.get(backend or "", _VLLMS[0])


def name_port_owner(port: int | None) -> str:
    """Name the client whose default a port is, as `SGLang's`; `vLLM's` for any other."""
    return _OWNERS.get(port or 0, _VLLMS[1])


def choose_backend(backend: str | None, endpoint_type: str | None, endpoint: str) -> str | None:
    """Choose our API from --backend, --endpoint-type and --endpoint; None without a name; raises UsageError.

    In 2025 both names were given, the first often as a label of completions. Where vLLM is the client,
    `sglang` is a server that is asked for OpenAI's completions at the endpoint.
    """
    labels = backend, endpoint_type
    backend, endpoint_type = (None if name is None else find_backend(name) for name in labels)
    if backend is None or endpoint_type is None:
        name = backend or endpoint_type
    elif backend in (endpoint_type, *FOLLOWING):
        name = endpoint_type
    else:
        raise UsageError(
            f"--backend {labels[0]} and --endpoint-type {labels[1]} are two APIs: leave out one of them"
        )
    if name == "sglang" and endpoint.endswith("completions"):
        return "openai"
    return name
