"""Trackers: what a store of MLflow and an offline run of Weights & Biases hold of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builders.loops import loop_over
from builders.made_runs import run
from loadgen import cli
from loadgen.features.export import export_command
from loadgen.features.export.export_command import list_numbers, list_parameters, list_tags
from report.test_request_rows import stored


def test_what_is_unknown_is_no_parameter_and_no_figure() -> None:
    of = run(window=None, requests=4, failed=4)
    parameters, numbers = list_parameters(of.facts), list_numbers(of)
    assert parameters["profile.input_len"] == 64
    assert parameters["environment.cpu"] == "a processor"
    assert [key for key, value in parameters.items() if value in (None, "")] == []
    assert "mean_ttft_ms" not in numbers
    assert numbers["failed"] == 4
    assert list_tags(of)["verdict"] == "INVALID"


@loop_over("tracker", ["mlflow", "wandb"])
def test_without_its_extra_a_tracker_says_what_to_install(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, run())
    monkeypatch.setitem(sys.modules, tracker, None)
    assert cli.main(["export", str(tmp_path), f"--{tracker}"]) == 2
    error = capsys.readouterr().err
    assert error.endswith(
        f"--{tracker} needs the {tracker} extra: in the clone, .venv/bin/pip install '.[{tracker}]'\n"
    )


def _make(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.mark.whole
def test_mlflow_holds_parameters_figures_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    of, store = run(), tmp_path / "store"
    directory = stored(_make(tmp_path / "made-run"), of)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert cli.main(["export", str(directory), "--mlflow", store.as_uri()]) == 0
    name = capsys.readouterr().out.split()[-1]
    client = mlflow.MlflowClient(tracking_uri=store.as_uri())
    logged = client.get_run(name)
    assert logged.data.metrics == list_numbers(of)
    assert logged.data.params == {key: str(value) for key, value in list_parameters(of.facts).items()}
    assert logged.data.tags["verdict"] == of.verdict.level.value
    assert logged.info.status == "FINISHED"
    assert logged.info.start_time == int(of.facts.started.timestamp() * 1e3)
    files = {each.path for each in client.list_artifacts(name)}
    assert files == {"result.json", "arrivals.npz", "report.txt"}


@pytest.mark.whole
def test_what_is_half_logged_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    store = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(export_command, "_list_files", lambda directory: [directory / "gone"])
    assert cli.main(["export", str(stored(_make(tmp_path / "made"), run())), "--mlflow", store]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    client = mlflow.MlflowClient(tracking_uri=store)
    (experiment,) = (each for each in client.search_experiments() if each.name != "Default")
    assert [each.info.status for each in client.search_runs([experiment.experiment_id])] == ["FAILED"]


@pytest.mark.whole
def test_a_store_that_cannot_be_reached_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert cli.main(["export", str(stored(tmp_path, run())), "--mlflow", "http://127.0.0.1:9"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith("loadgen: --mlflow http://127.0.0.1:9: ")


@pytest.mark.whole
def test_wandb_writes_an_offline_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    directory, place = stored(_make(tmp_path / "made-run"), run()), tmp_path / "kept"
    place.mkdir()
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(place)}.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    assert cli.main(["export", str(directory), "--wandb", "made"]) == 0
    assert "wandb: " in capsys.readouterr().out
    (file,) = place.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    for word in (b"output_throughput", b"profile.input_len", b"made-run", b"result.json"):
        assert word in content


@pytest.mark.whole
@pytest.mark.parametrize(
    ("mode", "project", "said"),
    [
        ("disabled", "", "loadgen: --wandb: it is switched off, nothing was logged: "),
        ("nowhere", "", "loadgen: --wandb: 1 validation error"),
        ("offline", "a/b", "loadgen: --wandb a/b: Invalid project name"),
    ],
)
def test_what_wandb_does_not_log_is_one_line(
    mode: str,
    project: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", mode)
    words = ["--wandb", project] if project else ["--wandb"]
    assert cli.main(["export", str(stored(_make(tmp_path / "made"), run())), *words]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(said)
