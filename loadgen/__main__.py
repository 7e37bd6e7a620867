"""`python -m loadgen`."""

from loadgen.cli import run

run()
