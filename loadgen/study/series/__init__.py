"""Series: many runs from one command: campaigns, sweeps, searches for a limit."""
