"""Describe: a trace, a data set or a planned workload as figures, words and pictures, next to another."""
