"""Export formats: the files that a run is written as, a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO

import msgspec

from loadgen.features.export.inferencex_row import encode_inferencex_row
from loadgen.features.export.llmd_report import encode_llmd_report
from loadgen.features.export.request_rows import FORMS, NAMES, REQUESTS, write_rows
from loadgen.report.run_directory import Result

Given = Mapping[str, str]  # --set KEY=VALUE


class ExportFormat(msgspec.Struct, frozen=True):
    """A format: its help, the name of its file in the run's directory, and the function that writes it."""

    about: str
    file_name: str
    write: Callable[[Result, Given, IO[bytes]], object]
    takes: bool = False  # whether --set completes it
    what: str = "run"  # of the line that says where it went
    of_whole: bool = False  # whether it reports a whole run's load, without our verdict of it


def _make_row_format(form: str) -> ExportFormat:
    """Make the format of a row per request in a form of `FORMS`."""
    return ExportFormat(
        f"a row a request as {NAMES[form]}",
        f"{REQUESTS}.{form}",
        lambda run, given, file: write_rows(run, form, file),
        what=REQUESTS,
    )


# By name; those of rows have a flag of their own too.
FORMATS = {
    **{form: _make_row_format(form) for form in FORMS},
    # llm-d's analysis globs benchmark_report_v0.2*yaml; JSON is YAML.
    "llm-d": ExportFormat(
        "llm-d's Benchmark Report v0.2.1",
        "benchmark_report_v0.2.yaml",
        lambda run, given, file: file.write(encode_llmd_report(run).encode()),
        of_whole=True,
    ),
    "inferencex": ExportFormat(
        "InferenceX's row of one node, completed by --set",
        "inferencex.json",
        lambda run, given, file: file.write(encode_inferencex_row(run, given).encode()),
        takes=True,
        of_whole=True,
    ),
}
