"""The pipelines of docs/ci.md and the action: as published schemas have them, with commands that are ours."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builders.loops import read_tables
from loadgen.study.gate.gate_command import gate_parser

TABLES = read_tables("pipelines")

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (extra docs)")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed (extra test)")
ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").is_file())
SCHEMAS = ROOT / "tests" / "data" / "schemas"
PAGE = (ROOT / "docs" / "ci.md").read_text("utf-8")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))


def block(language: str, heading: str) -> str:
    """The code block of a language under a heading of the page."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.M | re.S)
    return str(found)


def github() -> Any:
    return yaml.load(block("yaml", "GitHub"), yaml.BaseLoader)  # `on` stays a word


def check(document: Any, schema: str) -> None:
    """Hold a document to a schema by the rules of its draft."""
    rules = json.loads((SCHEMAS / schema).read_text("utf-8"))
    kind = jsonschema.validators.validator_for(rules)
    errors = [f"{error.json_path}: {error.message}" for error in kind(rules).iter_errors(document)]
    assert errors == []


def test_the_workflow_is_one_of_github_and_uses_the_action_as_it_is() -> None:
    workflow = github()
    check(workflow, "github_workflow.json")
    (step,) = (each for each in workflow["jobs"]["gate"]["steps"] if each.get("uses") == "./loadgen")
    assert set(step["with"]) <= set(ACTION["inputs"])
    required = {name for name, told in ACTION["inputs"].items() if told.get("required")}
    assert required <= set(step["with"])


def test_the_workflow_of_a_release_is_one_of_github() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    check(yaml.load(text, yaml.BaseLoader), "github_workflow.json")


def test_the_action_is_one_of_github() -> None:
    check(ACTION, "github_action.json")


def test_the_job_is_one_of_gitlab() -> None:
    check(yaml.safe_load(block("yaml", "GitLab")), "gitlab_ci.json")


def test_a_broken_pipeline_is_refused_by_each_schema() -> None:
    for document, schema in (
        ({"on": ["pull_request"], "jobs": {"gate": {"step": []}}}, "github_workflow.json"),
        ({**ACTION, "runs": {"using": "composite"}}, "github_action.json"),
        ({"gate": {"script": 5}}, "gitlab_ci.json"),
    ):
        with pytest.raises(AssertionError):
            check(document, schema)


def test_every_pipeline_gives_flags_that_a_gate_takes() -> None:
    commands = re.findall(r"(?:command: |bin/loadgen )gate (.+?)(?:\n(?! {12})|\"\"\")", PAGE, re.S)
    commands = [command for command in commands if "junit" in command]
    assert len(commands) == 3
    for command in commands:
        given = gate_parser().parse_args(shlex.split(command.replace("\\", "")))
        assert (given.places, given.allow_env, given.junit) == (["gate.toml"], ["NEW", "BASE"], "gate.xml")


def test_the_campaign_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loadgen import cli

    monkeypatch.setenv("NEW", "new")
    monkeypatch.setenv("BASE", "base")
    path = tmp_path / "gate.toml"
    path.write_text(block("toml", "The gate"), "utf-8")
    allowed = ["--allow-env", "NEW", "--allow-env", "BASE"]
    assert cli.main(["campaign", str(path), "--dry-run", *allowed]) == 0


# A command of the action; the words that loadgen gets of it, None if it cannot be split; its own exit code.
COMMANDS: list[tuple[str, list[str] | None, int]] = TABLES["commands"]


@pytest.mark.whole
@pytest.mark.parametrize(("command", "words", "code"), COMMANDS)
def test_the_action_gives_the_words_of_its_command_and_its_code(
    command: str, words: list[str] | None, code: int, tmp_path: Path
) -> None:
    (run,) = (step for step in ACTION["runs"]["steps"] if step.get("id") == "run")
    place, script, given = tmp_path / "a runner's", tmp_path / "step.sh", tmp_path / "given"
    program = place / "loadgen" / "bin" / "loadgen"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done >{given}\nexit {code}\n", "utf-8"
    )
    program.chmod(0o755)
    script.write_text(run["run"], "utf-8")
    (tmp_path / "shlex.py").write_text("open('ran', 'w')", "utf-8")  # as of a checkout
    environment = {
        **os.environ, "RUNNER_TEMP": str(place), "COMMAND": command, "PYTHON": sys.executable,
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }  # fmt: skip
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]  # as GitHub runs `shell: bash`
    ended = subprocess.run(
        shell, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30
    )
    assert ended.returncode == (2 if words is None else code)
    assert (tmp_path / "output").read_text("utf-8") == f"exit-code={ended.returncode}\n"
    assert ("::error::the command cannot be split" in ended.stderr) == (words is None)
    assert given.exists() == (words is not None)
    if words is not None:
        assert given.read_bytes() == b"".join(word.encode() + b"\0" for word in words)
    assert not (tmp_path / "ran").exists()
