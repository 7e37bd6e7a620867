"""Host: this machine during a run: what it is, its CPU use, what throttled it."""
