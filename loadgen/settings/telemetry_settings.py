"""Telemetry settings: where spans, metrics and figures go, and where spans and power come from."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from loadgen.base.parsing import parse_with
from loadgen.base.text import quote_value
from loadgen.base.urls import split_http_url
from loadgen.engines.engine import METRICS_PATH
from loadgen.settings.setting import OUTPUT, Makes, Setting

BY_ENVIRONMENT = ""  # --otel without a URL: the SDK's variables decide
_ADDRESS = re.compile(r"(?:([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})", re.ASCII)
_HERE = "127.0.0.1"
RECEIVED = f"{_HERE}:4318"  # OTLP/HTTP's own port


def check_collector_url(text: str) -> str:
    """Return the base URL of an OTLP collector without its last slash, "" as it is; raises ValueError."""
    url = text.strip().rstrip("/")
    if not text:
        return BY_ENVIRONMENT
    if (parts := split_http_url(url)) is None:
        raise ValueError(f"{quote_value(text)} is not a collector's URL: give one as http://localhost:4318")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            "the collector's URL holds more than host, port and path (not shown): put a key into "
            "OTEL_EXPORTER_OTLP_HEADERS, a variable"
        )
    if parts.path.endswith(("/v1/traces", "/v1/metrics")):
        raise ValueError(
            f"{url} is the place of one signal: leave out {parts.path[parts.path.index('/v1/') :]}"
        )
    return url


def check_listen_address(text: str) -> str:
    """Return PORT or HOST:PORT as HOST:PORT, of this machine alone without a host; raises ValueError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not 1 <= int(match[2]) <= 65_535:
        raise ValueError(f"{quote_value(text)} is not a port: give PORT, or HOST:PORT as 0.0.0.0:9464")
    return f"{match[1] or _HERE}:{int(match[2])}"


def check_power_url(text: str) -> str:
    """Return the URL of an exporter of power without /metrics; raises ValueError."""
    url = text.strip().rstrip("/").removesuffix(METRICS_PATH)
    if (parts := split_http_url(url)) is None:
        raise ValueError(f"{quote_value(text)} is not an exporter's URL: give one as http://node:9400")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("an exporter's URL is a host, a port and a path: leave out the rest (not shown)")
    return url


# fmt: off
_own = partial(Setting, Makes.NOTHING, group=OUTPUT, rank=5, resumes=True)


@dataclass(frozen=True)
class TelemetryOptions:
    """The settings of telemetry that leaves the client while it measures."""

    otel: Annotated[str | None, _own("send OpenTelemetry spans and metrics to URL (default: by "
        "OTEL_EXPORTER_OTLP_*, else http://localhost:4318), and a traceparent in each request",
        read=parse_with(check_collector_url), metavar="URL")] = None
    prometheus: Annotated[str | None, _own("serve the figures so far at PORT of this machine, or "
        "HOST:PORT, for Prometheus", read=parse_with(check_listen_address), metavar="[HOST:]PORT")] = None
    receive_spans: Annotated[str | None, _own("receive the server's spans by OTLP/HTTP at PORT of this "
        f"machine, or HOST:PORT (default {RECEIVED}): its own times of each request",
        read=parse_with(check_listen_address), metavar="[HOST:]PORT")] = None
# fmt: on
