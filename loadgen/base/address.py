"""Address: the host and the port of a URL, and whether it is this machine."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, for which the proxies of the environment do not apply."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None) or address
    # To connect to 0.0.0.0 or :: is to connect to this machine.
    return bool(mapped.is_loopback or mapped.is_unspecified)


def host_of(url: str) -> str:
    """The host of a URL; "" if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def port_of(url: str) -> int:
    """The port of a URL, its scheme's default if it names none; raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def is_this_machine(url: str) -> bool:
    """Whether a URL's host is this machine."""
    return is_loopback(host_of(url))


def is_public(url: str) -> bool:
    """Whether a URL's host is one of the internet: every address of it is global; one look-up of its name."""
    host = host_of(url)
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)} if host else set()
    except (OSError, UnicodeError):
        return False
    return bool(addresses) and all(
        ip_address(str(address).partition("%")[0]).is_global for address in addresses
    )
