"""llama-bench: the rows of llama.cpp's bench as JSON, JSON lines, CSV or SQL, each one test."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import tables
from loadgen.study.importers.pasted.grids import Grid, Row
from loadgen.study.run_summary import Reported

CLIENT = "llama-bench"
MARKS: tuple[bytes, ...] = (b"avg_ts",)
_INSERTED = re.compile(r"INSERT INTO \w{0,20}bench \(([^()]{1,4000})\) VALUES \((.{1,8000})\);")
_TESTED = ("n_prompt", "n_gen", "n_depth")
_NO_GPU = ("", "none")


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether a document is such a row."""
    return "avg_ts" in document and {"n_prompt", "n_gen"} <= {*document}


def is_sheet(text: str) -> bool:
    """Whether a text is such rows as CSV or as SQL."""
    header = text.lstrip().partition("\n")[0]
    return {"avg_ts", "n_prompt", "n_gen"} <= {name.strip().strip('"') for name in header.split(",")} or (
        "avg_ts" in text and _INSERTED.search(text) is not None
    )


def read_sheet(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of CSV or SQL as JSON would have them, with their lines."""
    if (first := _INSERTED.search(text)) is not None:
        for match in _INSERTED.finditer(text, first.start()):
            names = [name.strip() for name in match[1].split(",")]
            values = next(csv.reader([match[2]], quotechar="'", skipinitialspace=True))
            yield (
                text.count("\n", 0, match.start()) + 1,
                _parse_counts(dict(zip(names, values, strict=False))),
            )
        return
    reader = csv.DictReader(io.StringIO(text.lstrip("\n")))
    try:
        for cells in reader:
            yield reader.line_num, _parse_counts({str(name): str(cell) for name, cell in cells.items()})
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: not a valid table: {error}") from None


def _parse_counts(cells: Mapping[str, str]) -> dict[str, Any]:
    """A row with what it was tested with as numbers."""
    counts = {name: json_fields.parse_count(cells.get(name, "")) for name in _TESTED}
    return {**cells, **counts, "avg_ts": json_fields.parse_number(cells.get("avg_ts", ""))}


def read_runs(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of a row: prefill, decoding, or both, at a depth."""
    gpu, cpu = (json_fields.word(document.get(name)) for name in ("gpu_info", "cpu_info"))
    cells = {
        "model": json_fields.word(document.get("model_type"))
        or Path(json_fields.word(document.get("model_filename"))).stem,
        "backend": json_fields.word(document.get("backends")),
        "device": cpu if gpu.lower() in _NO_GPU else gpu,
        "test": _test(*(json_fields.count(document.get(name)) or 0 for name in _TESTED)),
        "t/s": tables.format_cell(document.get("avg_ts")),
    }
    grid = Grid(tuple(cells), (Row(1, tuple(cells.values())),), 1, 1)
    if not (runs := tables.read_client_table(grid, CLIENT, source)):
        raise UsageError(f"{source} has no figures")
    yield from runs


def _test(prompt: int, answer: int, depth: int) -> str:
    parts = [f"{name}{tokens}" for name, tokens in (("pp", prompt), ("tg", answer)) if tokens]
    return "+".join(parts) + (f" @ d{depth}" if depth else "")
