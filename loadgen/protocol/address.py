"""Addresses: the host that a URL names, and whether it is this machine."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: then no proxy of the environment is meant for it."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None) or address
    # To connect to 0.0.0.0 or :: is to connect to this machine.
    return bool(mapped.is_loopback or mapped.is_unspecified)


def host_of(base_url: str) -> str:
    """The host that a base URL names; "" where it names none."""
    try:
        return urlsplit(base_url).hostname or ""
    except ValueError:
        return ""
