"""Points: one load after the other on servers that are kept, as sweeps and searches need them."""
