"""`loadgen bench`: the flags are read, and the embedded engine starts while what a run needs is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from loadgen.run import embedded_engine
from loadgen.run.importing import importing
from loadgen.run.options import parse


def main(argv: Sequence[str], find_speeds: Callable[[], Any]) -> int:
    """Run the command; the exit code is the worst of its profiles'.

    `find_speeds` gives the `Speeds` of profiles that are shown as tables of them.
    """
    options = parse(argv)
    with ExitStack() as stack:
        begun = embedded_engine.begun(options, stack)
        with importing():
            from loadgen.run import bench

        return bench.run(options, stack, begun, find_speeds)
