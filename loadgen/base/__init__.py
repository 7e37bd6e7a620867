"""Base: errors and exit codes, clocks, text, arrays, parsers of values, files, secrets, rules."""
