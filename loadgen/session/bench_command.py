"""`loadgen bench`: the flags are read, and the embedded engine starts while what a run needs is imported."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from loadgen.session import embedded_engine
from loadgen.session.importing import importing
from loadgen.session.options import parse


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit code is the worst of its profiles'."""
    options = parse(argv)
    with ExitStack() as stack:
        begun = embedded_engine.begun(options, stack)
        with importing():
            from loadgen.session import bench

        return bench.run(options, stack, begun)
