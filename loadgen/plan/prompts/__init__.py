"""Prompts: what is made here from a seed: random ids, texts, and how long they are."""
