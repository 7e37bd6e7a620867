"""Export command: `loadgen export`, a run as a file that other programs read, or as a run of a tracker."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base.errors import ExitCode, MeasureError, UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.base.secrecy import Secrets
from loadgen.base.text import clean_line, describe_install, make_file_name
from loadgen.facts.run_facts import Facts
from loadgen.features.export.export_formats import FORMATS, list_workload
from loadgen.report import run_directory, run_writer
from loadgen.report.request_rows import FORMS, REQUESTS, write_named
from loadgen.report.result_file import OURS, name_marked_model
from loadgen.report.run_directory import Result
from loadgen.verdict.verdict import Level

_LOG = logging.getLogger("loadgen")
_FILES = (run_directory.RESULT, run_directory.ARRIVALS, run_directory.REPORT)
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_FEW = "3"  # about 12 s; MLflow's own 7 are four minutes of silence where nothing listens
_LONGEST = 500  # characters of a parameter that every store of MLflow takes


def export_parser() -> argparse.ArgumentParser:
    """Make the argument parser of `loadgen export`."""
    parser = Parser(
        prog="loadgen export",
        usage="loadgen export RUN_DIR (--jsonl | --csv | --parquet | --format NAME |\n"
        "                      --mlflow [URI] | --wandb [PROJECT])\n"
        "                      [--set KEY=VALUE] [--output FILE]",
        allow_abbrev=False,
        description="Write a run for other programs: its requests, a row each (ids, times in nanoseconds, "
        "tokens, failures), another project's report of it, or a tracker's run.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run directory")
    target = parser.add_mutually_exclusive_group(required=True)
    for name in FORMS:
        about = FORMATS[name].about
        target.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=about)
    others = "; ".join(f"{name}: {row.about}" for name, row in FORMATS.items() if name not in FORMS)
    listed = f"format of a row per request, or {others}"
    target.add_argument("--format", choices=tuple(FORMATS), metavar="NAME", help=listed)
    for name, tracker in TRACKERS.items():
        about = f"{tracker.about} (the {name} extra)"
        target.add_argument(f"--{name}", nargs="?", const="", metavar=tracker.takes, help=about)
    parser.add_argument(
        "--set",
        dest="given",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="value that the run does not know of InferenceX's row, as hw=h100 (docs/results.md)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"file, - for standard output (default: the format's name in RUN_DIR, as {REQUESTS}.csv)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen export`, print where the run went, and return the exit code."""
    parser = export_parser()
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return ExitCode.FIGURES
    asked = parse_arguments(parser, argv)
    form = FORMATS.get(asked.format or "")
    if asked.given and not (form is not None and form.takes):
        taking = ", ".join(name for name, row in FORMATS.items() if row.takes)
        raise UsageError(f"--set: of --format {taking} alone")
    parted = {pair: pair.partition("=") for pair in asked.given}
    for pair, (key, equals, _) in parted.items():
        if not (key and equals):
            raise UsageError(f"--set {pair}: write KEY=VALUE")
    given = {key.strip(): value.strip() for key, _, value in parted.values()}
    if form is None and asked.output is not None:
        raise UsageError("--output: a tracker gets the run's own files")
    run = run_directory.load(asked.run_dir)
    if form is not None and form.of_whole and (shard := run.facts.shard) is not None:
        raise UsageError(
            f"--format {asked.format}: the run is shard {shard.name}, a part of the load: join all by "
            "`loadgen merge`"
        )
    if form is None:
        name = next(name for name in TRACKERS if getattr(asked, name) is not None)
        place = TRACKERS[name].send(run, asked.run_dir.resolve(), getattr(asked, name))
        print_text(f"{name}: {place}", sys.stdout)
        return ExitCode.FIGURES
    if asked.output == "-":
        if sys.stdout is None:
            raise UsageError("standard output is closed: use --output FILE")
        try:
            form.write(run, given, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            pass  # who reads it has read what was wanted, as of any other verb
        except OSError as error:
            raise UsageError(
                f"cannot write to standard output: {error.strerror}; use --output FILE"
            ) from None
    else:
        path = asked.run_dir / form.file_name if asked.output is None else Path(asked.output)
        write_named(path, lambda file: form.write(run, given, file))
        print_text(f"{form.what}: {path}", sys.stdout)
    if form.of_whole and (level := run.verdict.level) is not Level.VALID:
        why = ", ".join(run.verdict.reasons)
        _LOG.warning("the run is %s (%s), which --format %s has no place for", level.value, why, asked.format)
    return ExitCode.FIGURES


class Tracker(msgspec.Struct, frozen=True):
    """A tracker: what its flag takes, its help, and the function that sends a run to it."""

    takes: str
    about: str
    send: Callable[[Result, Path, str], str]


def list_parameters(facts: Facts) -> dict[str, Any]:
    """List what was run: model, engine, the workload, machine; unknown ones are left out."""
    as_run = facts.as_run.model_dump() if facts.as_run is not None else {}
    parameters = {
        "model": name_marked_model(facts),
        "engine": facts.server.engine,
        "engine_version": facts.server.version,
        "seed": facts.seed,
        "plan_digest": facts.plan_digest,
        **{f"profile.{key}": value for key, value in list_workload(facts).items()},
        **{f"engine.{key}": value for key, value in as_run.items()},
        **{f"environment.{key}": value for key, value in facts.environment.items()},
    }
    return {key: value for key, value in parameters.items() if value not in (None, "", (), [], {})}


def list_numbers(run: Result) -> dict[str, float]:
    """List the figures of a run under vLLM's result keys; one that does not exist is left out."""
    result = {key: value for key, value in run_writer.encode_run(run).items() if key != OURS}
    return {
        key: float(value)
        for key, value in result.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def list_tags(run: Result) -> dict[str, str]:
    """List the verdict, the doubts' codes, and the run's label, where it has one."""
    tags = {
        "verdict": run.verdict.level.value,
        "doubts": " ".join(run.verdict.reasons),
        "label": run.facts.label or "",
    }
    return {key: value for key, value in tags.items() if value}


def _list_files(directory: Path) -> list[Path]:
    """List the run's files that are sent: result, arrivals and report, those that are there."""
    return [directory / name for name in _FILES if (directory / name).is_file()]


def send_to_mlflow(run: Result, directory: Path, uri: str) -> str:
    """Log a run to the MLflow store at `uri`, "" for its own default, and return where it is.

    The run has the times of ours; one that could not be logged whole is FAILED. Raises UsageError without
    MLflow, MeasureError if the store refuses.
    """
    try:
        import mlflow
    except ImportError:
        raise _explain_missing("mlflow") from None
    os.environ.setdefault(_RETRIES, _FEW)
    facts, logged = run.facts, None
    try:
        client = mlflow.MlflowClient(tracking_uri=uri or None)
        name = f"loadgen/{facts.profile.name}".rstrip("/")
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else client.create_experiment(name)
        began_ms = int(facts.started.timestamp() * 1e3)
        logged = client.create_run(
            experiment, start_time=began_ms, run_name=directory.name, tags=list_tags(run)
        )
        for key, value in list_parameters(facts).items():
            client.log_param(logged.info.run_id, key, str(value)[:_LONGEST])
        ended_ms = int(facts.finished.timestamp() * 1e3)
        for key, number in list_numbers(run).items():
            client.log_metric(logged.info.run_id, key, number, timestamp=ended_ms)
        for path in _list_files(directory):
            client.log_artifact(logged.info.run_id, str(path))
        client.set_terminated(logged.info.run_id, end_time=ended_ms)
    except (mlflow.exceptions.MlflowException, OSError) as error:
        if logged is not None:  # what is half there is not under way
            with suppress(mlflow.exceptions.MlflowException, OSError):
                client.set_terminated(logged.info.run_id, "FAILED")
        raise _explain_refused("mlflow", uri, error) from None
    return f"{name}, run {logged.info.run_id}"


def send_to_wandb(run: Result, directory: Path, project: str) -> str:
    """Log a run to a project of Weights & Biases, "" for `loadgen`, and return where it is.

    WANDB_MODE=offline writes it below WANDB_DIR instead. Raises UsageError without its package, MeasureError
    if it cannot be logged.
    """
    try:
        import wandb
    except ImportError:
        raise _explain_missing("wandb") from None
    try:
        logged = wandb.init(
            project=project or "loadgen",
            name=directory.name,
            config={**list_parameters(run.facts), **list_tags(run)},
            settings=wandb.Settings(console="off", silent=True),
        )
        logged.summary.update(list_numbers(run))
        files = wandb.Artifact(make_file_name(directory.name), "loadgen-run")
        for path in _list_files(directory):
            files.add_file(str(path))
        logged.log_artifact(files)
        logged.finish()
        wandb.teardown()  # its service writes the file's end as it ends
    except (wandb.Error, OSError, ValueError) as error:  # a wrong setting, as of WANDB_MODE, is a ValueError
        raise _explain_refused("wandb", project, error) from None
    if logged.disabled:
        raise MeasureError("--wandb: it is switched off, nothing was logged: unset WANDB_MODE")
    return str(logged.dir if logged.offline else logged.url)


def _explain_refused(name: str, place: str, error: Exception) -> MeasureError:
    flag = f"--{name} {place}".rstrip()
    secrets = Secrets.collect_exported({**os.environ, "place": place})  # a tracker may echo its key
    return MeasureError(secrets.hide(clean_line(f"{flag}: {error}")))


def _explain_missing(extra: str) -> UsageError:
    return UsageError(f"--{extra} needs the {extra} extra: {describe_install(extra)}")


# By name: its flag, its extra.
TRACKERS = {
    "mlflow": Tracker("URI", "log the run to MLflow (default: by MLFLOW_TRACKING_URI)", send_to_mlflow),
    "wandb": Tracker("PROJECT", "log the run to Weights & Biases (default: loadgen)", send_to_wandb),
}
