"""Host: this machine during a run: what it is, its CPU use, its sensors, what throttled it."""
