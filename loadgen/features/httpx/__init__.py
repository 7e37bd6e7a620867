"""Httpx: the portable transport, for proxies, HTTP/2 and platforms without epoll."""
