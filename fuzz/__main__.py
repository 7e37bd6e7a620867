"""The command: each target in a process of its own, then a table of what was run and what was found."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile

from fuzz.targets import HERE, ROOT, TARGETS, Target, corpus

_EXECUTED = re.compile(rb"stat::number_of_executed_units:\s*(\d+)")
_PULSE = re.compile(rb"^#(\d+)\s", re.MULTILINE)
_LONGEST_INPUT = 20_000
_SLOWEST_S, _MOST_MIB = 10, 2048


def main() -> int:
    """Run the targets that are named, all without a name; 1 where one was broken."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--runs", type=int, default=-1, metavar="N", help="executions of each (default: any)")
    parser.add_argument("--seconds", type=int, default=60, metavar="S", help="for each (default 60)")
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    broken = 0
    print(f"{'target':16}{'executions':>12}{'seconds':>9}  result")
    for name in given.targets or TARGETS:
        if find_spec(TARGETS[name].function.partition(":")[0]) is None:
            print(f"{name:16}{'-':>12}{'-':>9}  no such target yet", flush=True)
            continue
        executions, seconds, found = run(name, TARGETS[name], given.runs, given.seconds)
        broken += bool(found)
        print(f"{name:16}{executions:>12}{seconds:>9.0f}  {found or 'nothing found'}", flush=True)
    return min(broken, 1)


def run(name: str, target: Target, runs: int, seconds: int) -> tuple[int, float, str]:
    """Executions, seconds, and the last line of what broke it, "" where nothing did."""
    crashers = HERE / "crashers"
    crashers.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        seeds = Path(scratch) / "seeds"
        seeds.mkdir()
        for number, path in enumerate(_files(name, target)):
            copyfile(path, seeds / f"{number}")
        command = [sys.executable, "-m", "fuzz.one", name, f"-runs={runs}", f"-max_total_time={seconds}"]
        command += [f"-max_len={_LONGEST_INPUT}", f"-timeout={_SLOWEST_S}", f"-rss_limit_mb={_MOST_MIB}"]
        command += ["-print_final_stats=1", f"-artifact_prefix={crashers}/{name}-", str(seeds)]
        began_s = time.monotonic()
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        took_s = time.monotonic() - began_s
    said = ended.stderr + ended.stdout
    counts = _EXECUTED.findall(said) or _PULSE.findall(said) or [b"0"]
    why = "" if ended.returncode == 0 else _why(said)
    return int(counts[-1]), took_s, why


def _files(name: str, target: Target) -> list[Path]:
    kept = sorted(path for path in corpus(name).glob("*") if path.is_file())
    seeds = [path for pattern in target.seeds for path in sorted((ROOT / "tests/data").glob(pattern))]
    return kept + [path for path in seeds if path.is_file()]


def _why(said: bytes) -> str:
    """The exception, or what libFuzzer calls it."""
    lines = said.decode("utf-8", "replace").splitlines()
    telling = [
        one for one in lines if re.match(r"\w*(?:Error|Exception|Iteration)\b|.*ERROR: libFuzzer", one)
    ]
    return (telling or lines or ["it ended without a word"])[0][:150]


if __name__ == "__main__":
    sys.exit(main())
