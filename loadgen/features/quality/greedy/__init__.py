"""Greedy: the cheap form of quality, greedy answers to a few prompts after a run."""
