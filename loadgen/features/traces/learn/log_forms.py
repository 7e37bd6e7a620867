"""Log forms: the logs that a workload can be learned from, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from loadgen.base.errors import UsageError
from loadgen.features.traces.learn import litellm_log, log_rows, otel_log, vllm_log
from loadgen.features.traces.learn.calls import Rows
from loadgen.features.traces.learn.log_file import LogFile

Columns = Mapping[str, str]
ROWS = "rows"


class LogForm(NamedTuple):
    """One form of a log: what it is, how its first lines are known, and its reader."""

    summary: str
    is_form: Callable[[list[str]], bool]
    read: Callable[[LogFile, Columns, str], Rows]  # the names of --columns, and --path
    named: bool = False  # its columns may be named


FORMS = {
    "otel": LogForm(
        "spans of OpenTelemetry (OTLP's JSON, or flat)",
        otel_log.is_otel,
        lambda log, columns, path: otel_log.read_otel_calls(log),
    ),
    "litellm": LogForm(
        "LiteLLM's spend logs, or what its JSON loggers write",
        litellm_log.is_litellm,
        lambda log, columns, path: litellm_log.read_litellm(log),
    ),
    "vllm": LogForm(
        "vLLM's log with --enable-log-requests",
        vllm_log.is_vllm,
        lambda log, columns, path: vllm_log.read_vllm(log),
    ),
    "access": LogForm(
        "access log of nginx or Envoy, as text or JSON", log_rows.is_access, log_rows.read_access, named=True
    ),
    ROWS: LogForm("CSV or JSON rows, with --columns", lambda lines: False, log_rows.read_table, named=True),
}


def choose_form(name: str, log: LogFile, columns: Columns) -> tuple[str, LogForm]:
    """Choose a log's form by its name, by --columns, or by its first lines; raises UsageError for none."""
    found = name or (ROWS if columns else _find_form(log))
    if found not in FORMS:
        raise log.refusal(
            f"is no log that is known: pass --log-format {' | '.join(FORMS)}, or name its columns (--columns)"
        )
    if columns and not FORMS[found].named:
        raise UsageError(f"--columns: the keys of {found} are known: leave it out")
    if found == ROWS and not columns:
        raise UsageError(f"--log-format {ROWS}: name the columns, as --columns time=ts,input=prompt_tokens")
    return found, FORMS[found]


def _find_form(log: LogFile) -> str:
    """Return the form of a log by its first lines, "" if none knows them; raises UsageError if blank."""
    lines = log.read_head()
    return next((name for name, form in FORMS.items() if form.is_form(lines)), "")
