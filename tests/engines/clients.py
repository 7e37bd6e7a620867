"""Clients: `loadgen bench` and `vllm bench serve` as a user runs them, and the server's own figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from engines.running import OFFLINE, environment
from loadgen.records.record import Records
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.study.quality.reference_file import read_reference

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 300.0
BLOCK_TITLE = " Serving Benchmark Result "


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def block(self) -> str:
        """The result block of its output, rulers included; empty where there is none."""
        lines = self.out.splitlines()
        starts = [i for i, line in enumerate(lines) if BLOCK_TITLE in line]
        if not starts:
            return ""
        end = lines.index("=" * 50, starts[0])
        return "\n".join(lines[starts[0] : end + 1])


def loadgen(
    arguments: Sequence[str],
    directory: Path,
    verb: str = "bench",
    more: Mapping[str, str] | None = None,
    limit_s: float = _LIMIT_S,
) -> Finished:
    """`loadgen VERB ARGUMENTS` in a directory, to its end."""
    with start_loadgen(arguments, directory, verb, more) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Finished(process.returncode, out, err)


def measured(arguments: Sequence[str], directory: Path, verb: str = "bench", **how: Any) -> Finished:
    """The same, which has to end well."""
    finished = loadgen(arguments, directory, verb, **how)
    assert finished.code == 0, finished.err
    return finished


def start_loadgen(
    arguments: Sequence[str], directory: Path, verb: str = "bench", more: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """The same, not waited for."""
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "servers")])
    return subprocess.Popen(
        [sys.executable, "-m", "loadgen", verb, *arguments],
        cwd=directory,
        env=environment({"PYTHONPATH": path, **(more or {})}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def vllm_bench(python: Path, arguments: Sequence[str], directory: Path) -> dict[str, Any]:
    """The result file of `vllm bench serve ARGUMENTS`; raises CalledProcessError."""
    argv = [str(python.with_name("vllm")), "bench", "serve", *arguments]
    argv += ["--save-result", "--save-detailed", "--result-dir", str(directory)]
    argv += ["--result-filename", "theirs.json"]
    subprocess.run(
        argv, cwd=directory, env=environment({}), check=True, capture_output=True, timeout=_LIMIT_S
    )
    return read_json(directory / "theirs.json")


def write_campaign(
    path: Path, head: str, launch: tuple[str, Path, str], models: Mapping[str, Path], profile: str
) -> None:
    """Write a campaign's file: its keys, an engine with its Python and arguments, its checkpoints."""
    (path.parent / "short.toml").write_text(f"max_concurrency = 1\ntemperature = 0.0\n{profile}\n", "utf-8")
    engine, python, words = launch
    rows = "".join(f'[[checkpoints]]\nname = "{name}"\nmodel = "{place}"\n' for name, place in models.items())
    path.write_text(
        f'profiles = ["./short.toml"]\n{head}\n[servers.{engine}]\nlaunch = "{engine}"\n'
        f'server_python = "{python}"\nserver_args = "{words}"\n{rows}',
        "utf-8",
    )


def run_script(python: Path, script: str, *words: object) -> str:
    """Run a script of this folder with the engines' Python; what it printed."""
    argv = [str(python), str(Path(__file__).with_name(script)), *map(str, words)]
    return subprocess.run(
        argv, check=True, capture_output=True, text=True, env={**os.environ, **OFFLINE}
    ).stdout


def compute_divergence(python: Path, sampler: Path, other: Path, reference: Path, place: Path) -> float:
    """The exact divergence along the answers that a reference's file has, each to another prompt."""
    answers = [(line.answer.prompt_ids, line.answer.token_ids) for line in read_reference(reference).answers]
    assert len(answers) == len({prompt for prompt, _ in answers})
    path = place / "answers.json"
    path.write_text(json.dumps(answers))
    return float(run_script(python, "exact_divergence.py", sampler, other, path).split()[-1])


def load_run(directory: Path) -> Result:
    """The one run that a command has kept."""
    (place,) = (path.parent for path in (directory / "runs").glob("*/result.json"))
    return run_directory.load(place)


def read_run(directory: Path) -> tuple[dict[str, Any], Records]:
    """The result and the records of the one run that a command has kept."""
    (place,) = (path.parent for path in (directory / "runs").glob("*/result.json"))
    return read_json(place / "result.json"), Records.load(place / "arrivals.npz")


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object of a file."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def scrape(base_url: str) -> dict[str, float]:
    """/metrics by name, summed over labels; histogram buckets left out."""
    sums: dict[str, float] = defaultdict(float)
    for line in httpx.get(f"{base_url}/metrics", trust_env=False).text.splitlines():
        name, _, value = line.partition(" ") if "{" not in line else _labelled(line)
        if name and not line.startswith("#") and not name.endswith("_bucket"):
            sums[name] += float(value)
    return dict(sums)


def _labelled(line: str) -> tuple[str, str, str]:
    name, _, rest = line.partition("{")
    labels, _, value = rest.rpartition("} ")
    return name, labels, value
