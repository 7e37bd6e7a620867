"""Launching shards elsewhere: a manifest by Kubernetes' own schema, scripts for Slurm and MPI."""

from __future__ import annotations

import importlib
import shlex
import subprocess
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from fakes.virtual_time import VirtualTime
from loadgen import cli
from loadgen.fleet import shards_command

yaml: Any = importlib.import_module("yaml")  # neither has types
kubernetes_validate: Any = importlib.import_module("kubernetes_validate")
TABLES = read_tables("launching")
JOB = "--k8s --shards 3 --image registry.example/loadgen:1 --claim runs"
FLAGS = "--base-url http://llm:8000 --num-prompts 10 --max-concurrency 4 --seed 7"
VERSIONS = ("1.29", "1.33", "1.36")


def printed(line: str, flags: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert shards_command.main([*shlex.split(line), "--", *shlex.split(flags)], VirtualTime()) == 0
    return capsys.readouterr().out


def manifest(line: str, flags: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = yaml.safe_load(printed(line, flags, capsys))
    assert isinstance(found, dict)
    return found


def container(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = job["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@loop_over("version", VERSIONS)
@loop_over("more", ["", "--name a-b --namespace bench --secret keys/openai --memory 4Gi --start-in 30"])
def test_kubernetes_own_schema_takes_the_manifest(
    version: str, more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = manifest(f"{JOB} {more}", FLAGS, capsys)
    kubernetes_validate.validate(job, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**job, "spec": {**job["spec"], "shards": 3}}, version, strict=True)


def test_the_api_key_is_taken_from_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    (key,) = container(manifest(f"{JOB} --secret keys/openai", FLAGS, capsys))["env"]
    assert key == {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}


@pytest.mark.whole
@loop_over("way", ["--slurm", "--mpi"])
def test_a_script_is_a_shells_and_begins_all_together(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = printed(f"{way} --shards 3 --start-in 9 --name x", f"{FLAGS} --label 'a b$c'", capsys)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    started = next(line for line in script.splitlines() if "loadgen bench" in line)
    words = shlex.split(started[started.index("loadgen bench") :])
    added = ["--shard", "auto", "--start-at", "$start", "--run-dir", "$runs", "--quiet"]
    assert words == ["loadgen", "bench", *FLAGS.split(), "--label", "a b$c", *added]
    assert "start=$(( $(date +%s) + 9 ))" in script
    assert "loadgen merge" in script
    counted = {"--slurm": "#SBATCH --ntasks=3\n", "--mpi": "mpirun -n 3 "}[way]
    assert counted in script


@loop_over(("line", "message"), TABLES["refused"])
def test_what_cannot_be_started_is_refused(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = line.replace("JOB", JOB).replace("FLAGS", FLAGS)
    assert cli.main(["shards", *shlex.split(line)]) == 2
    refused = capsys.readouterr()
    assert refused.out == ""
    assert message in refused.err


ODD_TEXTS = [
    *("nightly 😀", "\U0010ffff", "é ü 中文", "\x85\u2028\u2029", "\ufeff\ufffe\uffff", "\x7f\x80\x9f"),
    *("a\tb\nc\rd", 'quoted "x" \\n \\U0001F600', "$(date) $HOME $$", "null", "yes", "1e3", "- # : {", "~"),
]


@loop_over("text", ODD_TEXTS)
@loop_over("loader", ["SafeLoader", "CSafeLoader"])
def test_any_text_of_a_flag_is_read_from_the_manifest_as_given(
    text: str, loader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = shlex.join([*shlex.split(FLAGS), "--label", text])
    job = yaml.load(printed(JOB, flags, capsys), getattr(yaml, loader))
    words = container(job)["command"]
    assert words[words.index("--label") + 1] == text.replace("$", "$$")


WAYS = [JOB, "--slurm --shards 2", "--mpi --shards 2"]


@loop_over("way", WAYS)
@loop_over(("flags", "message"), TABLES["refused by bench too"])
def test_what_bench_refuses_is_refused_by_every_way_and_not_shown(
    way: str, flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *shlex.split(flags), "--num-prompts", "4"]) == 2
    by_bench = capsys.readouterr().err
    assert cli.main(["shards", *shlex.split(way), "--", *shlex.split(flags), "--num-prompts", "4"]) == 2
    refused = capsys.readouterr()
    assert message in refused.err
    assert refused.err.splitlines()[-1] == by_bench.splitlines()[-1]
    assert refused.out == ""
    if "--metadata" not in flags:
        assert "urlPassw0rd" not in refused.err


@loop_over(("flags", "named"), TABLES["printed with a key"])
@loop_over("way", WAYS)
def test_a_flag_that_is_printed_with_a_key_is_named(
    way: str, flags: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        shards_command.main([*shlex.split(way), "--", *shlex.split(f"{FLAGS} {flags}")], VirtualTime()) == 0
    )
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines if "is printed as it was given" in line] == named


@loop_over("name", ["a b", "$(x)", "a;b", "", "-x", "x" * 101, "a\nb"])
@loop_over("way", ["--slurm", "--mpi"])
def test_a_name_that_a_script_cannot_hold_is_refused(
    way: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["shards", way, "--shards", "2", f"--name={name}", "--", *FLAGS.split()]) == 2
    assert "--name" in capsys.readouterr().err
