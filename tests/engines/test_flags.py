"""Flags of the clients that are installed next to the engines: our tables have each of them."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.switchers import FLAGS_OF
from loadgen.plan.arrival import Arrival

pytestmark = pytest.mark.engine

_OF_VLLM = """
import argparse
from vllm.benchmarks.serve import add_cli_args
parser = argparse.ArgumentParser()
add_cli_args(parser)
print(*(option for action in parser._actions for option in action.option_strings))
"""


def test_every_flag_of_the_installed_vllm_is_in_the_table(engines_python: Path) -> None:
    argv = [str(engines_python), "-c", _OF_VLLM]
    printed = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True).stdout
    flags = {word for word in printed.split() if word.startswith("--")} - {"--help"}
    assert len(flags) > 80
    assert flags - {flag for flag, *_ in FLAGS_OF["vllm"]} == set()


_DUE_BY_VLLM = """
import asyncio, json
import numpy as np
from vllm.benchmarks import serve

class Clock:
    now = 0.0

def advance(seconds):
    Clock.now += seconds
    return asyncio.sleep(0)

serve.time.time = lambda: Clock.now
serve.asyncio = type("virtual", (), {"sleep": staticmethod(advance)})

async def list_due(n, rate, burstiness, seed):
    Clock.now = 0.0
    np.random.seed(seed)
    return [Clock.now async for _ in serve.get_request([None] * n, rate, burstiness)]

print("DUE", json.dumps([asyncio.run(list_due(*case)) for case in CASES]))
"""


def test_requests_are_due_when_the_installed_vllm_sends_them(engines_python: Path) -> None:
    cases = [
        (n, rate, burstiness, seed)
        for n, rate in ((1, 2.0), (80, 8.0), (500, 30.0))
        for burstiness in (0.25, 1.0, 4.0, math.inf)
        for seed in range(20)
    ]
    source = "from math import inf\n" + _DUE_BY_VLLM.replace("CASES", repr(cases))
    argv = [str(engines_python), "-c", source]
    printed = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True).stdout
    all_due = json.loads(printed.rpartition("DUE ")[2])
    for (n, rate, burstiness, seed), due_s in zip(cases, all_due, strict=True):
        draws: Any = np.random.RandomState(seed)  # as vLLM draws
        ours_ns = Arrival(rate, burstiness, exact=True).offsets_ns(n, draws)
        np.testing.assert_allclose(ours_ns, np.array(due_s) * 1e9, atol=1000)


def test_every_flag_of_the_installed_sglang_is_in_the_table(sglang_python: Path) -> None:
    """From its source: importing it needs what a machine may lack."""
    (source,) = sglang_python.parent.parent.glob("lib/python*/site-packages/sglang/benchmark/serving.py")
    flags = set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', source.read_text("utf-8")))
    assert len(flags) > 80
    assert flags - {flag for flag, *_ in FLAGS_OF["sglang"]} == set()
