"""Trackers: what the scripts of docs/examples log to a store of MLflow and to an offline run of W&B."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders.made_runs import run
from report.test_request_rows import stored

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
pytestmark = pytest.mark.whole


def log_run(script: str, place: Path, **variables: str) -> tuple[Path, str]:
    """Log a made run; return its directory and what the script printed last."""
    directory = place / "made-run"
    directory.mkdir()
    argv = [sys.executable, str(EXAMPLES / script), str(stored(directory, run()))]
    done = subprocess.run(
        argv, cwd=place, env={**os.environ, **variables}, check=True, capture_output=True, text=True
    )
    return directory, done.stdout.split()[-1] if done.stdout else ""


def test_mlflow_holds_parameters_figures_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = (tmp_path / "store").as_uri()
    directory, name = log_run("log_to_mlflow.py", tmp_path, MLFLOW_TRACKING_URI=store)
    client = mlflow.MlflowClient(tracking_uri=store)
    logged, of = client.get_run(name), run()
    assert logged.data.metrics["output_throughput"] == pytest.approx(of.metrics.output_throughput_per_s)
    assert logged.data.params["profile.input_len"] == "64"
    assert logged.data.tags["verdict"] == of.verdict.level.value
    assert (logged.info.status, logged.info.run_name) == ("FINISHED", directory.name)
    assert logged.info.start_time == int(of.facts.started.timestamp() * 1e3)
    files = {each.path for each in client.list_artifacts(name)}
    assert files == {"result.json", "arrivals.npz", "report.txt"}


def test_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    places = dict.fromkeys(
        ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"), str(tmp_path)
    )
    log_run("log_to_wandb.py", tmp_path, WANDB_MODE="offline", **places)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    for word in (b"output_throughput", b"input_len", b"made-run", b"result.json"):
        assert word in content
