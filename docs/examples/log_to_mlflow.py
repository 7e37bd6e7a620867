"""Log a run directory to MLflow: python3 log_to_mlflow.py RUN_DIR, with MLFLOW_TRACKING_URI set."""

import json
import sys
from datetime import datetime
from pathlib import Path

import mlflow

LONGEST = 500  # characters of a parameter that every store of MLflow takes

directory = Path(sys.argv[1]).resolve()
result = json.loads((directory / "result.json").read_text("utf-8"))
facts = result["loadgen"]
verdict = facts["verdict"]
tables = {name: facts[name] or {} for name in ("profile", "server", "as_run", "environment")}
parameters = {f"{table}.{key}": value for table, row in tables.items() for key, value in row.items()}
parameters |= {"model": result["model_id"], "seed": facts["seed"], "plan_digest": facts["plan_digest"]}
figures = {key: value for key, value in result.items() if isinstance(value, float) or type(value) is int}
tags = {"verdict": verdict["level"], "doubts": " ".join(doubt["name"] for doubt in verdict["doubts"])}
began_ms, ended_ms = (
    int(datetime.fromisoformat(facts[name]).timestamp() * 1000) for name in ("started", "finished")
)

client = mlflow.MlflowClient()
name = f"loadgen/{facts['profile']['name'] or 'bench'}"
known = client.get_experiment_by_name(name)
experiment = known.experiment_id if known else client.create_experiment(name)
run = client.create_run(experiment, start_time=began_ms, run_name=directory.name, tags=tags).info.run_id
status = "FAILED"
try:
    for key, value in parameters.items():
        if value not in (None, "", [], {}):
            client.log_param(run, key, str(value)[:LONGEST])
    for key, value in figures.items():
        client.log_metric(run, key, value, timestamp=ended_ms)
    for file in ("result.json", "arrivals.npz", "report.txt"):
        client.log_artifact(run, str(directory / file))
    status = "FINISHED"
finally:
    client.set_terminated(run, status, end_time=ended_ms)
print(f"{name}, run {run}")
