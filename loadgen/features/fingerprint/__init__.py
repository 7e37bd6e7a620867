"""Fingerprint: greedy answers to fixed prompts, whether they are broken, and how far two servers agree."""
