"""Transport: connections, requests sent, arrivals timestamped: the hot path, in its own process."""
