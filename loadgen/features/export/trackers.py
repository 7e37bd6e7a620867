"""Trackers: a run as a run of MLflow or Weights & Biases: its parameters, figures and files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.secrecy import Secrets
from loadgen.base.text import clean_line, describe_install, make_file_name
from loadgen.facts.run_facts import Facts
from loadgen.features.export.export_formats import list_workload
from loadgen.report import run_directory
from loadgen.report.result_file import OURS, name_marked_model
from loadgen.report.run_directory import Result

_FILES = (run_directory.RESULT, run_directory.ARRIVALS, run_directory.REPORT)
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_FEW = "3"  # about 12 s; MLflow's own 7 are four minutes of silence where nothing listens
_LONGEST = 500  # characters of a parameter that every store of MLflow takes


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
    result = {key: value for key, value in run.json().items() if key != OURS}
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
    "mlflow": Tracker("URI", "log the run to MLflow, there or by MLFLOW_TRACKING_URI", send_to_mlflow),
    "wandb": Tracker("PROJECT", "log the run to Weights & Biases (default: loadgen)", send_to_wandb),
}
