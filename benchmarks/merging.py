"""How long `loadgen merge` takes, and how much memory: synthetic shards of one plan, merged by one process.

Run by hand: `python benchmarks/merging.py [--tokens 10000000 100000000] [--shards 4]`. Of the files of the
shards and of the merged run each takes up to 32 bytes a message.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "servers")]

from benchmarks.harness.process import Command, checkout_env, run  # noqa: E402
from benchmarks.memory import PART, PER_REQUEST, facts, requests  # noqa: E402
from loadgen import __version__  # noqa: E402
from loadgen.base.structs import replace  # noqa: E402
from loadgen.facts.run_facts import ClockReading, ShardFacts  # noqa: E402
from loadgen.records.record import Records  # noqa: E402
from loadgen.report import run_writer  # noqa: E402
from loadgen.report.run_directory import Result  # noqa: E402

HEADER = ("tokens", "shards", "MB read", "wall s", "CPU s", "peak MiB")
WIDTH = 10
LIMIT_S = 3600.0


class ShardParts:
    """The frames of one shard's journal; can be iterated repeatedly."""

    def __init__(self, tokens: int, number: int, of: int) -> None:
        self._tokens, self._number, self._of = tokens, number, of

    def __iter__(self) -> Iterator[Records]:
        for first in range(0, self._tokens // PER_REQUEST, PART):
            some = min(PART * PER_REQUEST, self._tokens - first * PER_REQUEST)
            rows = list(requests(some, 1, first))
            for record in rows:
                record.index = self._number + self._of * record.index
                record.slot = self._number + self._of * record.slot
            yield Records.unpack(Records.from_records(rows).pack())


def shard(tokens: int, number: int, of: int, directory: Path) -> None:
    """Write the run directory of one shard of a plan of `tokens` in all."""
    directory.mkdir()
    records = Records.join(ShardParts(tokens // of, number, of), spill=directory)
    clock = ClockReading(boot="here", offset_ns=10**18, error_ns=1000)
    own = ShardFacts(number=number, of=of, version=__version__, before=clock, after=clock)
    known = replace(facts(of * len(records)), shard=own)
    run_writer.save(Result(known, records), directory, {}, [])


def measured(tokens: int, shards: int, scratch: Path) -> list[float]:
    """MB of the shards' files, wall and CPU seconds and peak MiB of their merge; raises CouldNotRun."""
    places = [scratch / f"shard-{number}" for number in range(shards)]
    for number, place in enumerate(places):
        shard(tokens, number, shards, place)
    read = sum(file.stat().st_size for place in places for file in place.iterdir())
    argv = [sys.executable, "-m", "loadgen", "merge", *map(str, places), "--output", str(scratch / "merged")]
    cost = run(Command(argv, {**checkout_env(), "TMPDIR": str(scratch)}), LIMIT_S)
    return [read / 1e6, cost.wall_s, cost.cpu_s, cost.peak_rss_bytes / 2**20]


def main() -> None:
    """Print a line for each number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[10_000_000, 100_000_000])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--directory", default=None, help="for the files; on a disk, not in memory")
    args = parser.parse_args()
    print("".join(name.rjust(WIDTH) for name in HEADER))
    for tokens in args.tokens:
        with tempfile.TemporaryDirectory(dir=args.directory) as scratch:
            read, wall_s, cpu_s, peak = measured(tokens, args.shards, Path(scratch))
        cells = [str(tokens), str(args.shards), f"{read:.0f}", f"{wall_s:.1f}", f"{cpu_s:.1f}", f"{peak:.0f}"]
        print("".join(cell.rjust(WIDTH) for cell in cells), flush=True)


if __name__ == "__main__":
    main()
