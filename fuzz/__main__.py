"""The command: each target in a process of its own, then a line of what was run and what was found."""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

from fuzz.targets import HERE, ROOT, TARGETS, corpus, inputs

_COUNTS = {
    "executions": re.compile(rb"stat::number_of_executed_units:\s*(\d+)"),
    "pulse": re.compile(rb"^#(\d+)\s", re.MULTILINE),
    "peak_mib": re.compile(rb"stat::peak_rss_mb:\s*(\d+)"),
}
_SLOWEST_S, _MOST_MIB = 10, 1024
_WORD = re.compile(r"[\x21-\x7e]{3,40}")
_MEMORY = Path("/dev/shm")  # files there cost no disk
_KEPT, _LONGEST_KEPT = 16, 4096  # files of a target, and their bytes


class Ran(NamedTuple):
    """What became of one target."""

    executions: int
    seconds: float
    peak_mib: int
    found: str  # what broke it, "" where nothing did


def main() -> int:
    """Run the targets that are named, all without a name; 1 where one was broken."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--runs", type=int, default=-1, metavar="N", help="executions of each (default: any)")
    parser.add_argument("--seconds", type=int, default=60, metavar="S", help="for each (default 60)")
    parser.add_argument(
        "--keep", action="store_true", help="instead: add some of what was found to the corpus"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if given.keep:
        for name in given.targets or TARGETS:
            print(f"{name:16}{keep(name):>4} files are kept", flush=True)
        return 0
    broken = 0
    print(f"{'target':16}{'executions':>12}{'seconds':>9}{'peak MiB':>10}  result")
    for name in given.targets or TARGETS:
        ran = run(name, given.runs, given.seconds)
        broken += bool(ran.found)
        result = ran.found or "nothing found"
        print(f"{name:16}{ran.executions:>12}{ran.seconds:>9.0f}{ran.peak_mib:>10}  {result}", flush=True)
    return min(broken, 1)


def run(name: str, runs: int, seconds: int) -> Ran:
    """Fuzz one target; what reached new code stays in found/, what broke it in crashers/."""
    crashers, found = HERE / "crashers", HERE / "found" / name
    for directory in (crashers, found):
        directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as scratch:
        seeds, words = Path(scratch) / "seeds", Path(scratch) / "words"
        seeds.mkdir()
        for number, path in enumerate(inputs(name)):
            copyfile(path, seeds / f"{number}")
        words.write_text("\n".join(_dictionary(name)))
        command = [sys.executable, "-m", "fuzz.one", name, f"-runs={runs}", f"-max_total_time={seconds}"]
        command += [
            f"-max_len={TARGETS[name].longest}",
            f"-timeout={_SLOWEST_S}",
            f"-rss_limit_mb={_MOST_MIB}",
        ]
        command += ["-print_final_stats=1", f"-artifact_prefix={crashers}/{name}-"]
        command += [f"-dict={words}"] * TARGETS[name].words
        command += [str(found), str(seeds)]
        began_s = time.monotonic()
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, check=False, env={**os.environ, "TMPDIR": scratch}
        )
        took_s = time.monotonic() - began_s
    output = ended.stderr + ended.stdout
    counts = {key: int([b"0", *pattern.findall(output)][-1]) for key, pattern in _COUNTS.items()}
    executions = counts["executions"] or counts["pulse"]
    why = _why(output) if ended.returncode or not executions else ""
    return Ran(executions, took_s, counts["peak_mib"], why)


def keep(name: str) -> int:
    """Copy to the corpus inputs that together reach all that was reached, 16 at most; how many there are."""
    kept = corpus(name)
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "fuzz.one", name, "-merge=1", "-set_cover_merge=1"]
        command += [f"-max_len={_LONGEST_KEPT}", scratch, str(kept), str(HERE / "found" / name)]
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        there = {path.read_bytes() for path in kept.iterdir()}
        new = [path for path in sorted(Path(scratch).iterdir(), key=_size) if path.read_bytes() not in there]
        room = max(_KEPT - len(there), 0)
        for path in new[:: -(-len(new) // room)] if room and new else []:
            copyfile(path, kept / path.name[:12])
    return len(list(kept.iterdir()))


def _size(path: Path) -> tuple[int, str]:
    return path.stat().st_size, path.name


def _dictionary(name: str) -> list[str]:
    """The words that the modules under test compare with, as libFuzzer reads them."""
    target = TARGETS[name]
    words = {word for module in target.instrumented for path in _sources(module) for word in _words(path)}
    escaped = (word.replace("\\", "\\\\").replace('"', '\\"') for word in sorted(words))
    return [f'"{word}"' for word in escaped] if target.words else []


def _sources(module: str) -> list[Path]:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"there is no module {module}: correct fuzz/targets.py")
    origin = Path(spec.origin)
    return sorted(origin.parent.glob("*.py")) if spec.submodule_search_locations else [origin]


def _words(path: Path) -> list[str]:
    constants = (
        node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
    )
    texts = (text.decode("latin-1") if isinstance(text, bytes) else text for text in constants)
    return [text for text in texts if isinstance(text, str) and _WORD.fullmatch(text)]


def _why(output: bytes) -> str:
    """The exception, or what libFuzzer calls it."""
    lines = output.decode("utf-8", "replace").splitlines()
    telling = [
        line for line in lines if re.match(r"\w*(?:Error|Exception|Iteration)\b|.*ERROR: libFuzzer", line)
    ]
    return (telling or lines[-1:] or ["it ended without a message"])[0][:150]


if __name__ == "__main__":
    sys.exit(main())
