"""Power settings: which exporters report the power of machines that the client is not on."""

from __future__ import annotations

from loadgen.base.parsing import parse_with
from loadgen.base.text import quote_value
from loadgen.base.urls import split_http_url
from loadgen.engines.engine import METRICS_PATH
from loadgen.settings.setting import RUN, Makes, OptionRows, setting


def check_power_url(text: str) -> str:
    """Return the URL of an exporter of power without /metrics; raises ValueError."""
    url = text.strip().rstrip("/").removesuffix(METRICS_PATH)
    if (parts := split_http_url(url)) is None:
        raise ValueError(f"{quote_value(text)} is not an exporter's URL: give one as http://node:9400")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("an exporter's URL is a host, a port and a path: leave out the rest (not shown)")
    return url


# fmt: off
class PowerOptions(OptionRows, frozen=True):
    """The settings of where power is read that no sensor of this machine reports."""

    power_url: tuple[str, ...] = setting(Makes.NOTHING, (), "read the power of the server's machines at URL "
        "(repeatable): DCGM's exporter (port 9400), node_exporter's RAPL (9100), AMD's "
        "device-metrics-exporter (5000)", group=RUN, rank=2, read=parse_with(check_power_url),
        action="append", metavar="URL", keyword="list[str]", names_server=True, swept=False,
        extension="loadgen.features.sensors.power_urls")
# fmt: on


OPTIONS = (PowerOptions,)
