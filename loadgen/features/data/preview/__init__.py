"""Preview: what `loadgen data` shows and writes of a plan before any of it is sent."""
