"""Servers as processes: the null server and the embedded engine. Nothing here imports `loadgen`."""
