"""Fuzz: every reader of strangers' bytes under atheris; `python -m fuzz --help`."""
