"""Base: errors and exit codes, clocks, text, tables, parsers of values, files, secrets, rules."""
