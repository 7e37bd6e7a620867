"""Log a run directory to Weights & Biases: python3 log_to_wandb.py RUN_DIR, with WANDB_PROJECT set."""

import json
import re
import sys
from pathlib import Path

import wandb

directory = Path(sys.argv[1]).resolve()
result = json.loads((directory / "result.json").read_text("utf-8"))
facts = result["loadgen"]
verdict = facts["verdict"]
config = {name: facts[name] for name in ("profile", "server", "as_run", "environment", "seed", "plan_digest")}
config |= {"model": result["model_id"], "verdict": verdict["level"]}
config["doubts"] = [doubt["name"] for doubt in verdict["doubts"]]
figures = {key: value for key, value in result.items() if isinstance(value, float) or type(value) is int}

with wandb.init(name=directory.name, config=config) as run:
    run.summary.update(figures)
    files = wandb.Artifact(re.sub(r"[^\w.-]", "-", directory.name), "loadgen-run")
    for file in ("result.json", "arrivals.npz", "report.txt"):
        files.add_file(str(directory / file))
    run.log_artifact(files)
wandb.teardown()  # its service writes the file's end as it ends
