"""The bars that `run.py` measures, each a section of docs/benchmarks.md."""
