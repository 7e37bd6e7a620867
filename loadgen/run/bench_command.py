"""`loadgen bench`: the flags are read, and the embedded engine starts while what a run needs is imported."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from loadgen.run import embedded_engine
from loadgen.run.importing import importing
from loadgen.run.options import parse


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit code is the worst of its profiles'."""
    options = parse(argv)
    with ExitStack() as stack:
        begun = embedded_engine.begun(options, stack)
        with importing():
            from loadgen.run import bench

        return bench.run(options, stack, begun)
