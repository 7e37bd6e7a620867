"""Peers: what the flags and data sets of other benchmark clients are here."""
