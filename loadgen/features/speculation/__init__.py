"""Speculation: how much of a run's speed comes from drafts, and how long its steps take."""
