"""Data: requests that a file holds: prompts, whole bodies, conversations."""
