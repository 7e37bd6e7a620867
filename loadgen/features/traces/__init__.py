"""Traces: what arrived at a server once: when, how long, and which prompts began alike."""
