"""Transport: requests sent and their arrivals captured: the hot path, in a process of its own."""
