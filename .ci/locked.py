"""Whether what is installed is what is locked: `locked.py requirements/ci.txt`; 1 where it is not."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

OURS = {"llm-loadgen", "setuptools"}  # and what `python3 -m venv` brings, where it does

text = Path(sys.argv[1]).read_text("utf-8")
locked = set(re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", text, re.MULTILINE))
found = {(re.sub(r"[-_.]+", "-", one.name).lower(), one.version) for one in distributions()}
wrong = sorted((name, version) for name, version in found - locked if name not in OURS)
for name, version in wrong:
    print(f"{name} {version} is installed and not locked")
sys.exit(bool(wrong))
