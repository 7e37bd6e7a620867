"""Base: errors, the clock, text and tables, bounds, files, secrets, the form of a rule."""
