"""Metrics URLs: `--metrics-url ROLE=URL`, where each server behind a router has its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.secrecy import hide_url_secrets
from loadgen.base.structs import replace
from loadgen.base.text import quote_value
from loadgen.base.urls import check_path, read_host, read_port, split_http_url
from loadgen.server.role_window import ROLES, Role

FLAG = "--metrics-url"


class MetricsUrl(msgspec.Struct, frozen=True):
    """One server's metrics: its role, a short name, its origin, and the path as given; "" leaves it open."""

    role: Role
    name: str
    origin: str
    path: str = ""

    @property
    def shown_url(self) -> str:
        """The URL without what its query may hold."""
        return hide_url_secrets(self.origin + self.path)

    @property
    def shown(self) -> str:
        """The role and URL for messages."""
        return f"{self.role}={self.shown_url}"


def parse_metrics_urls(texts: Sequence[str]) -> list[MetricsUrl]:
    """Parse every ROLE=URL, with names that are short and differ; raises UsageError.

    A name is the host's first label, or its address, and the port; where two would be the same, of the whole
    host, or with the place in the list.
    """
    places = [_parse_url(text) for text in texts]
    for place in places:
        if sum(each.origin + each.path == place.origin + place.path for each in places) > 1:
            raise UsageError(
                f"{FLAG} {place.shown}: this URL is given twice, and its counters would be summed twice: "
                "give each once"
            )
    return [replace(place, name=name) for place, name in zip(places, _choose_names(places), strict=True)]


def _choose_names(places: Sequence[MetricsUrl]) -> list[str]:
    """Choose a name for each place: the first form of its host that no other has, else a numbered one."""
    forms = [(_name_short(place), _name_whole(place)) for place in places]
    counts = [Counter(names) for names in zip(*forms, strict=True)]
    return [
        next((name for name, count in zip(names, counts, strict=True) if count[name] == 1), f"{names[1]}#{i}")
        for i, names in enumerate(forms, 1)
    ]


def _parse_url(text: str) -> MetricsUrl:
    role, equals, url = text.strip().partition("=")
    if not equals or role not in ROLES:
        what = "no role is named" if "://" in role or not equals else f"{quote_value(role)} is no role"
        raise UsageError(
            f"{FLAG}: {what}: write ROLE=URL, as decode=http://10.0.0.2:8000, with {', '.join(ROLES[:-1])} "
            f"or {ROLES[-1]}"
        )
    parts = split_http_url(url)
    if parts is None or parts.fragment:
        shown = quote_value(hide_url_secrets(url))
        raise UsageError(f"{FLAG} {role}={shown}: not a URL: write it like http://10.0.0.2:8000")
    if parts.username or parts.password:
        raise UsageError(
            f"{FLAG} {role}: the URL holds credentials (not shown): none are sent: leave them out"
        )
    path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    check_path(path, FLAG)
    return MetricsUrl(role, "", f"{parts.scheme}://{parts.netloc}", path)


def _name_short(place: MetricsUrl) -> str:
    name = _name_whole(place)
    host = read_host(place.origin)
    try:
        ip_address(host)
    except ValueError:
        return name.replace(host, host.partition(".")[0], 1)
    return name


def _name_whole(place: MetricsUrl) -> str:
    host = read_host(place.origin)
    return f"{f'[{host}]' if ':' in host else host}:{read_port(place.origin)}"
