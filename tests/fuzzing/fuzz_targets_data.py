"""Functions of bytes for `python -m fuzz` and the suite: readers of data and traces; each must return."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzzing.fuzz_files import written
from fuzzing.fuzz_odd import replaced, spots
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.plan import plan, profile
from loadgen.plan.request_sources import ModelTarget, Seed

DATASETS, TRACES = (Path(__file__).parents[1] / "data" / name for name in ("datasets", "traces"))
SERVER, _SEED = ModelTarget(ENGINES[0], "served", vocab_size=1000), Seed(1, chosen=True)
_APIS = ("openai", "openai-chat")
_LAST = 64  # requests of which bodies are made


def dataset(data: bytes) -> None:
    """A file without a name, in either API."""
    _planned(dataset_path=str(written(data, "data.jsonl")))


def dataset_csv(data: bytes) -> None:
    """The same as CSV."""
    _planned(dataset_path=str(written(data, "data.csv")))


def trace(data: bytes) -> None:
    """A trace, known by its keys."""
    _planned(trace=str(written(data, "trace.jsonl")))


def odd_rows(data: bytes) -> None:
    """Rows of each kind with odd values in them: the first byte says which."""
    _change_rows(data, DATASETS, dataset)


def odd_traces(data: bytes) -> None:
    """The same of traces of agents."""
    _change_rows(data, TRACES, trace)


def _change_rows(data: bytes, directory: Path, read: Callable[[bytes], None]) -> None:
    if data:
        known = _rows(directory)
        rows = replaced(*known[data[0] % len(known)], data[1:])
        read("\n".join(json.dumps(row) for row in rows).encode())


@cache
def _rows(directory: Path) -> list[tuple[Any, list[tuple[Any, ...]]]]:
    files = sorted(directory.glob("*.jsonl"))
    known = [[json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in files]
    return [(rows, spots(rows)) for rows in known]


def _planned(**keys: Any) -> None:
    for backend in _APIS:
        try:
            made = plan.make(profile.build({**keys, "backend": backend}), SERVER, _SEED)
        except UsageError as error:
            (_,) = str(error).splitlines()  # one line
            continue
        made.digest()
        for i in range(min(len(made), _LAST)):
            made.body(i)
        if made.turns is not None and made.turns.waits is not None:
            made.turns.waits.check(made.turns.begins)
