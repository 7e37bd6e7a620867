"""Texts: prompts made of text, by a tokenizer or by the server's own count."""
