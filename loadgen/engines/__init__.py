"""Engines: the known servers: how each is recognised, the fields of its requests, its refusals."""
