"""Verify: what a run, a series or a bundle states, held to what its arrivals give."""
