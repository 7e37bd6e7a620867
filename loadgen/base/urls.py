"""URLs: base URLs as people paste them, hosts and ports, and what may stand in a request's head."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Container, Iterable
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from loadgen.base.errors import UsageError

VERSION = "/v1"
_VERSIONED_APIS = ("/chat/completions", "/completions", "/responses", "/messages")
_GENERATE, _MODELS = "/generate", "/models"
_OTHERS = ("/embeddings", "/audio/speech", "/images/generations")
_VERSIONED = re.compile(r"/v\d+\w*(?:/openai)?$")  # OpenAI's; Gemini has v1beta/openai, others v3 or v4
_DEPLOYMENT = re.compile(r"/openai/deployments/[^/]+$")  # of Azure, where no version follows
_AZURE = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")
_ANTHROPIC, _KEY = "anthropic-version", "x-api-key"
_HARMLESS = {"api-version"}  # what a query may hold; anything else may be a key
# Headers that a user may not set: the transport decides where a request ends, where it goes, and what becomes
# of the connection; two of one of these, and server and client disagree.
_FRAMING = {"content-length", "transfer-encoding", "te", "trailer", "expect"}
_CONNECTION = {"host", "connection", "keep-alive", "proxy-connection", "upgrade"}
_OURS = _FRAMING | _CONNECTION | {"content-type", "x-request-id"}
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2
_VALUE = re.compile(r"[\t -~]*")
_PATH = re.compile(r"[!-~]*")
_ID = re.compile(r"[ -~]*")
_PROXIES = ("all_proxy", "http_proxy", "https_proxy")


class ApiPlace(msgspec.Struct, frozen=True):
    """A server's base URL in parts: what precedes every path, version, and endpoint and query if given."""

    base_url: str
    prefix: str = VERSION  # before /models, /completions and /chat/completions
    endpoint: str | None = None  # the whole path
    query: str = ""  # after the path of every request to the API, with its question mark


def parse_base_url(base_url: str, endpoint: str | None = None) -> ApiPlace:
    """Split a pasted base URL into server, version, endpoint and query; raises UsageError on a conflict.

    An endpoint of another API is one too. An invalid URL is returned unsplit; a query other than api-version
    stays in `base_url`. `endpoint` is the user's --endpoint, which must agree with the URL's.
    """
    base_url = base_url.strip()
    try:
        parts = urlsplit(base_url)
        host = parts.hostname or ""
    except ValueError:
        return ApiPlace(base_url, endpoint=endpoint)
    path, query = parts.path.rstrip("/"), ""
    if parts.query and {name for name, _ in parse_qsl(parts.query)} <= _HARMLESS:
        query, parts = f"?{parts.query}", parts._replace(query="")
    other = next((name for name in _OTHERS if path.endswith(name)), None)
    if other is not None and host:
        raise UsageError(
            f"--base-url ends in {other}, an API that is not measured: give one that ends in "
            "/v1/chat/completions or /v1/completions"
        )
    ending = next((name for name in (*_VERSIONED_APIS, _GENERATE, _MODELS) if path.endswith(name)), "")
    path = path.removesuffix(ending)
    versioned = _VERSIONED.search(path)
    prefix = (
        versioned[0]
        if versioned
        else ""
        if ending in _VERSIONED_APIS or _DEPLOYMENT.search(path)
        else VERSION
    )
    whole = path if versioned is None else path.removesuffix(prefix)
    pasted = {**dict.fromkeys(_VERSIONED_APIS, prefix + ending), _GENERATE: _GENERATE}.get(ending)
    if endpoint is not None and versioned:
        endpoint = endpoint if endpoint.startswith("/") else f"/{endpoint}"
        if endpoint != _GENERATE and not endpoint.startswith(f"{prefix}/"):
            endpoint = prefix + endpoint
    if pasted and endpoint and pasted != endpoint:
        raise UsageError(
            f"--base-url names the endpoint {pasted} and --endpoint {endpoint}: leave one of them out"
        )
    return ApiPlace(parts._replace(path=whole).geturl(), prefix, pasted or endpoint, query)


def choose_key_headers(base_url: str | None, named: Container[str] = ()) -> tuple[str, ...]:
    """Choose the headers for the API key by the server's URL: `Authorization`, or `api-key` for Azure.

    Of Anthropic's API, which the headers `named` (in small letters) show, they are `x-api-key`, and
    `Authorization` too where another server has that API.
    """
    host = read_host(base_url or "")
    if _ANTHROPIC in named:
        return (_KEY,) if host.endswith(".anthropic.com") else ("Authorization", _KEY)
    return ("api-key",) if host.endswith(_AZURE) else ("Authorization",)


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine by loopback, so that proxies do not apply."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None) or address
    # Connecting to 0.0.0.0 or :: connects to this machine.
    return bool(mapped.is_loopback or mapped.is_unspecified)


def is_unspecified(host: str) -> bool:
    """Whether a host is 0.0.0.0 or ::, on which a server listens at every address of its machine."""
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def find_proxy(scheme: str, host: str) -> str:
    """Return the variable, as `http_proxy`, whose proxy applies to a host; "" where none does."""
    named = any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)
    if not named or is_loopback(host):
        return ""
    from urllib.request import getproxies, proxy_bypass  # 20 ms of each --help, and rarely asked

    proxies = getproxies()
    for name in (scheme, "all"):
        if name in proxies and not proxy_bypass(host):
            return f"{name}_proxy"
    return ""


def split_http_url(url: str) -> SplitResult | None:
    """Split a URL of http or https with a host, and with a port that can be if any; None for other texts."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port, half an IPv6 address
        return None
    return parts if valid and url.isprintable() else None


def read_host(url: str) -> str:
    """Read the host of a URL; "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def read_port(url: str) -> int:
    """Read the port of a URL, its scheme's default if it names none; raises ValueError for an invalid one."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def is_this_machine(url: str) -> bool:
    """Whether a URL's host is this machine's loopback; its other names and addresses do not count."""
    return is_loopback(read_host(url))


def is_public(url: str) -> bool:
    """Whether a URL's host resolves (once, in DNS) to global internet addresses alone; False on an error."""
    host = read_host(url)
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)} if host else set()
    except (OSError, UnicodeError):
        return False
    places = (ip_address(str(address).partition("%")[0]) for address in addresses)
    return bool(addresses) and all(place.is_global for place in places)


def check_headers(headers: Iterable[tuple[str, str]], origin: str = "--header") -> None:
    """Raise UsageError, naming the header but not its value, if one cannot be sent as given."""
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{origin} {name!r}: not a valid header name: use letters, digits and hyphens")
        if name.lower() in _OURS:
            raise UsageError(f"{origin} {name}: the client sets this header itself: leave it out")
        if not _VALUE.fullmatch(value):
            raise UsageError(
                f"{origin} {name}: the value has a control character or is not ASCII "
                "(a line end from a key file?): give one line of ASCII"
            )


def check_path(path: str, origin: str = "--endpoint") -> None:
    """Raise UsageError if a path cannot stand in an HTTP request line as it is."""
    if not _PATH.fullmatch(path):
        raise UsageError(f"{origin} {path!r}: has a space or a non-ASCII character: percent-encode it (%20)")


def check_request_id_prefix(prefix: str) -> None:
    """Raise UsageError if a prefix of x-request-id cannot stand in a header."""
    if not _ID.fullmatch(prefix):
        raise UsageError(
            f"--request-id-prefix {prefix!r} has a character that no header may hold: use printable ASCII"
        )
