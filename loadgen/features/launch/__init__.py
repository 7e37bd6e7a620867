"""Launch: a server that is started for a run, observed until its end, and stopped."""
