"""Flags of the clients that are installed next to the engines: our tables have each of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from loadgen.features.peers.other_clients import OTHERS
from loadgen.features.peers.vllm_flags import VLLM

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
    assert flags - {flag for flag, *_ in VLLM.rows()} == set()


def test_every_flag_of_the_installed_sglang_is_in_the_table(sglang_python: Path) -> None:
    """From its source: importing it needs what a machine may lack."""
    (source,) = sglang_python.parent.parent.glob("lib/python*/site-packages/sglang/benchmark/serving.py")
    flags = set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', source.read_text("utf-8")))
    assert len(flags) > 80
    assert flags - {flag for flag, *_ in OTHERS[0].rows()} == set()
