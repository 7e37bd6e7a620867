"""Keeping: what a run leaves on the disk: its directory, and the rows of its requests where asked for."""

from __future__ import annotations

from pathlib import Path

from loadgen.base.errors import UsageError
from loadgen.base.guard import Broken, make_guarded
from loadgen.base.secrecy import Secrets, hide_secrets
from loadgen.report import report, request_rows, run_directory
from loadgen.report.run_directory import Result
from loadgen.run import progress, signals
from loadgen.run.followup import FinishedRun
from loadgen.run.local_server import Local
from loadgen.run.options import Options
from loadgen.run.signals import Interrupts
from loadgen.server import engine_config


def keep(
    run: Result,
    directory: Path,
    options: Options,
    local: Local | None,
    secrets: Secrets,
    interrupts: Interrupts,
    explain: bool,
    layout: str | None,
) -> FinishedRun:
    """Write a run's directory; see Session.keep."""
    broken: list[Broken] = []
    writing = progress.display(options.quiet).waiting(f"writing {directory}")
    with signals.deferred(interrupts) as came, writing:
        text = make_guarded("the report", lambda: report.render(run, explain, layout), "", broken)
        texts = {run_directory.REPORT: text + "\n"}
        if local is not None and local.log is not None:
            log = local.log  # engines print their keys
            content = engine_config.read_log(log)
            texts[log.name] = hide_secrets(secrets.conceal(content))
        errors = run_directory.save(run, directory, texts, broken)
        if options.save_requests:
            try:
                request_rows.save(run, directory)
            except UsageError as error:
                errors.append(str(error))
    errors += [f"{part.name}: {part.why}; the run is kept in {directory}" for part in broken]
    return FinishedRun(tuple(errors), signal=came[0] if came else 0)
