"""Saturation: a run whose load the server cannot keep up with ends early."""
