"""Engines: the servers that are known: how one is recognised, what its requests may hold, how it refuses."""
