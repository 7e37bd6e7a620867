"""Command: a run as a person or a program asks for it: flags, keywords, keys, and what is shown meanwhile."""
