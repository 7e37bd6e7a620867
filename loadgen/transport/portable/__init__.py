"""Portable: httpx, for proxies, HTTP/2 and platforms without kernel timestamps."""
