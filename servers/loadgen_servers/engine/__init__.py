"""The embedded engine: a small model of continuous batching that answers as vLLM does, in real time."""
