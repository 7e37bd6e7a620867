"""Workloads: how requests arrive, how long they are, what they share, measured before any is sent."""
