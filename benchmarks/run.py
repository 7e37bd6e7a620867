"""Every bar of the project in one run: `python benchmarks/run.py`, a table and docs/benchmarks.md.

Nothing here asserts a time: a bar is `met` or `missed`, and the exit code is 0 unless something
could not run at all. Peers are given with flags or with the environment variables of the same
names (RUST_EXTENSION, RUST_PYTHON, VLLM, TOKENIZER, each with LOADGEN_BENCH_ before it).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "servers")]

from benchmarks.bars import (  # noqa: E402
    attributing,
    data,
    images,
    install,
    limits,
    limits_clock,
    limits_floors,
    local,
    replay,
    saturation,
    scale,
    sessions,
    starved,
    streams,
    telemetry,
)
from benchmarks.clients import adapters  # noqa: E402
from benchmarks.clients.adapters import Installed, Paths  # noqa: E402
from benchmarks.harness import page  # noqa: E402
from benchmarks.harness.page import Bar, Section  # noqa: E402
from benchmarks.harness.process import CouldNotRun, compile_checkout  # noqa: E402
from loadgen_servers.http_server import raise_file_limit  # noqa: E402

BENCHMARKS: dict[str, Callable[[Installed, int], Section]] = {
    "wide": streams.wide,
    "medium": streams.medium,
    "single": streams.single,
    "unpaced": streams.unpaced,
    "ring": starved.ring,
    "selftest": streams.selftest,
    "telemetry": telemetry.telemetry,
    "memory": local.memory,
    "plan": local.planning,
    "rows": data.million_rows,
    "replay": replay.replay,
    "sessions": sessions.sessions,
    "images": images.images,
    "attributing": attributing.attributing,
    "workers": scale.workers,
    "wider": scale.wider,
    "rate": scale.rate,
    "limits": limits.limits,
    "limits-floors": limits_floors.floors,
    "limits-clock": limits_clock.limits_clock,
    "saturation": saturation.saturation,
    "startup": local.startup,
    "install": install.install,
}
_QUICK = ("wide", "medium", "unpaced", "plan", "startup")
_PREFIX = "LOADGEN_BENCH_"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the selected benchmarks, print the table, write the page; 1 if any could not run."""
    options = _parser().parse_args(argv)
    names = options.only or (_QUICK if options.quick else tuple(BENCHMARKS))
    repeats = options.repeats or (1 if options.quick else 5)
    raise_file_limit()  # for every client alike
    compile_checkout()
    with tempfile.TemporaryDirectory() as scratch:
        paths = Paths(
            options.rust_extension,
            options.rust_python,
            options.rust_version,
            options.vllm,
            options.tokenizer,
        )
        installed = adapters.find(paths, Path(scratch))
        sections = [_section(name, installed, repeats) for name in names]
    print("\n".join(page.bars(sections)))
    for reason in installed.missing:
        print(f"\nnot run here: {reason}")
    output = options.output
    if output is None and not (options.quick or options.only):
        output = ROOT / "docs" / "benchmarks.md"
    if output is not None:
        output.write_text(page.document(sections, repeats, installed.missing), "utf-8")
    faults = [fault for section in sections for fault in section.faults]
    for fault in faults:
        print(f"could not run: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _section(name: str, installed: Installed, repeats: int) -> Section:
    """The section of one benchmark, also if it could not run."""
    try:
        return BENCHMARKS[name](installed, repeats)
    except CouldNotRun as error:
        return Section(name, [Bar(name, "could not run, see below", "", None)], (), [str(error)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--repeats", type=int, metavar="N", help="of each client on each load (default 5; 1 with --quick)")
    add("--quick", action="store_true", help=f"one repeat of {', '.join(_QUICK)}")
    add("--only", action="append", choices=tuple(BENCHMARKS), metavar="NAME",
        help=f"one of {', '.join(BENCHMARKS)}; may be given again")  # fmt: skip
    add("--output", type=Path, metavar="FILE",
        help="where the page goes (default: docs/benchmarks.md after a full run, else nowhere)")  # fmt: skip
    for flag, what in (
        ("--rust-extension", "directory of SGLang's _bench extension"),
        ("--rust-python", "the Python which that extension was built for"),
        ("--rust-version", "its version, for the page"),
        ("--vllm", "the `vllm` command of an environment that has it"),
        ("--tokenizer", "directory of a tokenizer for the peers (default: a small one is made)"),
    ):
        name = _PREFIX + flag.removeprefix("--").replace("-", "_").upper()
        add(flag, metavar="PATH", default=os.environ.get(name, ""), help=what)
    return parser


if __name__ == "__main__":
    sys.exit(main())
