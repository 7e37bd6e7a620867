"""Local: the bars that need no load: memory, planning, start-up."""

from __future__ import annotations

import gc
import re
import statistics
import sys
import tempfile
import time

from benchmarks.bars.trials import trial
from benchmarks.clients.adapters import Installed, Load
from benchmarks.harness.page import Bar, Section, markdown, spread
from benchmarks.harness.process import ROOT, Command, checkout_env, run
from loadgen.engines import engines
from loadgen.plan import plan, profile
from loadgen.plan.request_sources import ModelTarget, Seed

_TOKENS = (10_000_000, 20_000_000, 40_000_000)
_FIRST = Load("first", streams=1, requests=1, output_tokens=2, interval_ms=1, ttft_ms=1)
_REPORTED = 5  # the column of the peak once the report was made
_STARTS = 2  # start-ups are short: this many per repeat


def memory(installed: Installed, repeats: int) -> Section:
    """Runs of 10, 20 and 40 million tokens, joined, saved, loaded, reported; once, as it does not vary."""
    script = ROOT / "benchmarks" / "memory.py"
    command = Command([sys.executable, str(script), "--tokens", *map(str, _TOKENS)], checkout_env())
    stdout = run(command).stdout
    first, *_, longest = (_row(stdout, tokens) for tokens in _TOKENS)
    peak, last, kept = first[_REPORTED], longest[_REPORTED], first[-1]
    bars = [
        Bar("bytes kept per token once decoded", f"{kept:.1f}", "≤ 64", kept <= 64),
        Bar("10 M tokens, reported: peak RSS", f"{peak:.0f} MiB", "≤ 600 MiB", peak <= 600),
        Bar("40 M tokens, the same", f"{last:.0f} MiB", "≤ 600 MiB", last <= 600),
    ]
    return Section("Memory (`benchmarks/memory.py`)", bars, ["```", *stdout.rstrip().splitlines(), "```"])


def _row(stdout: str, tokens: int) -> list[float]:
    """The figures in the line of `tokens` tokens."""
    row = re.search(rf"^ *{tokens}((?: +[\d.]+)+)$", stdout, re.MULTILINE)
    assert row is not None, f"memory.py no longer prints a line of {tokens} tokens"
    return [float(figure) for figure in row[1].split()]


def planning(installed: Installed, repeats: int) -> Section:
    """The plan of 1,000 prompts of 2,048 ids, and all its request bodies."""
    workload = profile.build(
        {"num_prompts": 1000, "input_len": 2048, "output_len": 128, "max_concurrency": 8}
    )
    subject = ModelTarget(engine=engines.UNKNOWN, model="null")
    makes, bodies, sizes = [], [], []
    for repeat in range(repeats):
        gc.collect()
        begin = time.perf_counter()
        made = plan.make(workload, subject, Seed(repeat))
        planned = time.perf_counter()
        sizes.append(sum(len(made.body(index)) for index in range(len(made))))
        bodies.append(time.perf_counter() - planned)
        makes.append(planned - begin)
    total = [make + body for make, body in zip(makes, bodies, strict=True)]
    bar = Bar(
        "plan of 1,000 × 2048 ids, all bodies built",
        spread(total, "{:.3f}") + " s",
        "≤ 0.5 s",
        statistics.median(total) <= 0.5,
    )
    lines = [
        f"Plan {spread(makes, '{:.3f}')} s, bodies {spread(bodies, '{:.3f}')} s, "
        f"{statistics.median(sizes) / 1e6:.1f} MB of JSON, in process.",
    ]
    return Section("Planning", [bar], lines)


def startup(installed: Installed, repeats: int) -> Section:
    """Seconds until help is printed, until the first request is on the wire, and of a whole short run."""
    loadgen = [sys.executable, "-m", "loadgen"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "loadgen --help": [*loadgen, "--help"],
        "loadgen bench --help": [*loadgen, "bench", "--help"],
    }
    # The embedded engine at 1 ms a step: most of it is starting, and two pauses of 0.2 s in which it settles.
    smoke = [*loadgen, "bench", "--profile", "smoke", "--preset", "instant"]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    first: list[float] = []
    whole: list[float] = []
    for _ in range(_STARTS * repeats + 1):
        for name, argv in commands.items():
            seconds[name].append(run(Command(argv, checkout_env())).wall_s)
        first.append(trial(installed.ours, _FIRST).first_request_s)
        with tempfile.TemporaryDirectory() as runs:
            whole.append(run(Command([*smoke, "--run-dir", runs], checkout_env())).wall_s)
    bars = [
        _quick("`loadgen --help`", seconds["loadgen --help"], 0.25),
        _quick("`loadgen bench --help`", seconds["loadgen bench --help"], 0.25),
        _quick("first request on the wire after process start", first, 0.5),
        _quick("`loadgen bench --profile smoke --preset instant`, whole", whole, 1.1),
    ]
    rows = [(f"`{name}`", spread(taken, "{:.3f}")) for name, taken in seconds.items()]
    rows.append(("first request in the server's kernel", spread(first, "{:.3f}")))
    rows.append(("smoke, whole", spread(whole, "{:.3f}")))
    count = f"Medians of {_STARTS * repeats + 1}, `python -m loadgen` of this checkout."
    return Section("Start-up", bars, [count, "", *markdown(("", "seconds"), rows)])


def _quick(what: str, seconds: list[float], most: float) -> Bar:
    return Bar(what, spread(seconds, "{:.3f}") + " s", f"≤ {most} s", statistics.median(seconds) <= most)
