"""How long the attribution of a run takes, and how much memory beyond the records.

Run by hand: `python benchmarks/attribution_cost.py [--tokens 10000000]`; the bars are 10 s and 400 MiB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "servers")]

from benchmarks.memory import Parts, facts, peak_rss  # noqa: E402
from loadgen.features.attribution.attribution import attribute_run  # noqa: E402
from loadgen.records.record import Records  # noqa: E402
from loadgen.report.run_directory import ARRIVALS, Result  # noqa: E402

HEADER = ("tokens", "s", "CPU s", "MiB")
WIDTH = 12


def store(asked: tuple[int, str]) -> None:
    """Make records and store them, in a process whose memory is not measured."""
    tokens, directory = asked
    Records.join(Parts(tokens, 1), spill=Path(directory)).save(Path(directory) / ARRIVALS)


def measure(directory: str) -> tuple[float, float, float]:
    """Attribute a stored run: seconds, CPU seconds and MiB of peak memory beyond what was there before."""
    records = Records.load(Path(directory) / ARRIVALS)
    run = Result(facts(len(records)), records)
    before, began, worked = peak_rss(), time.perf_counter(), time.process_time()
    found = run.derive(attribute_run)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - worked
    assert len(found.ttft) == len(records)
    return seconds, cpu_s, (peak_rss() - before) / 2**20


def main() -> None:
    """Print a line for each length of run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[10_000_000])
    args = parser.parse_args()
    print("".join(name.rjust(WIDTH) for name in HEADER))
    spawn = multiprocessing.get_context("spawn")
    for tokens in args.tokens:
        with tempfile.TemporaryDirectory() as directory:
            with spawn.Pool(1) as pool:
                pool.map(store, [(tokens, directory)])
            with spawn.Pool(1) as pool:
                (figures,) = pool.map(measure, [directory])
        cells = [str(tokens), *(f"{figure:.2f}" for figure in figures)]
        print("".join(cell.rjust(WIDTH) for cell in cells), flush=True)


if __name__ == "__main__":
    main()
