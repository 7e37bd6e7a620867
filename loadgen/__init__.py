"""A serving-load benchmark client for LLM servers whose every figure was true of the server."""

__version__ = "0.1.0"
