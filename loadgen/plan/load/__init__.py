"""Load: how many requests a workload sends, when, of which kinds, and which of them it ends early."""
