"""Transport: connections, requests sent, arrivals timestamped: the hot path, in its own process.

`epoll_transport` timestamps an arrival, right after the read that brought it; `capture` keeps the timestamps
of a response's reads, and converts the kernel's to CLOCK_MONOTONIC; `records/decode` gives them to messages.
"""
