"""The environment: what is told of the machine, and what is never told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from builders.loops import loop_over
from loadgen.base.secrecy import hide_argument_secrets, hide_secrets
from loadgen.host import environment
from loadgen.host.environment import start_git


@loop_over(
    ("typed", "shown"),
    [
        (["--header", "Authorization=Bearer x"], ["--header", "Authorization=***"]),
        (["--header", "Authorization: Bearer x"], ["--header", "Authorization=***"]),
        (["--header", "x-a=1", "x-b=2", "--seed", "7"], ["--header", "x-a=***", "x-b=***", "--seed", "7"]),
        (["--header=x-a=1"], ["--header=***"]),
        (["--server-env", "HF_TOKEN=hf"], ["--server-env", "HF_TOKEN=***"]),
        (["--server-env=HF_TOKEN=hf"], ["--server-env=HF_TOKEN=***"]),
        (["--server-env", "OPENAI_API_KEY=a=b"], ["--server-env", "OPENAI_API_KEY=***"]),
        (["--server-env", "AWS_ACCESS_KEY_ID=x"], ["--server-env", "AWS_ACCESS_KEY_ID=***"]),
        (["--server-env", "TOKENIZERS_PARALLELISM=0"], ["--server-env", "TOKENIZERS_PARALLELISM=0"]),
        (["--server-env", "VLLM_CPU_KVCACHE_SPACE=1"], ["--server-env", "VLLM_CPU_KVCACHE_SPACE=1"]),
        (
            ["--server-args=--api-key a b --max-model-len 32768"],
            ["--server-args=--api-key *** --max-model-len 32768"],
        ),
        (["--server-args=--api-key=a --seed 1"], ["--server-args=--api-key=*** --seed 1"]),
        (["--server-args", "--hf-token 'a b' --seed 1"], ["--server-args", "--hf-token *** --seed 1"]),
        (
            ["--launch-command", 'HF_TOKEN="a b" serve --port {port} -H "Authorization: Basic x"'],
            ["--launch-command", 'HF_TOKEN=*** serve --port {port} -H "Authorization: ***"'],
        ),
        (["vllm", "serve", "m", "--api-key", "a", "b"], ["vllm", "serve", "m", "--api-key", "***", "***"]),
        (["--api-key", "-dash", "--seed", "1"], ["--api-key", "***", "--seed", "1"]),
        (["--api-key=a", "m"], ["--api-key=***", "***"]),
        (["docker", "run", "-e", "HF_TOKEN=a", "image"], ["docker", "run", "-e", "HF_TOKEN=***", "image"]),
        (["--base-url", "http://me:pass@host:1/v1"], ["--base-url", "http://***@host:1/v1"]),
        (["curl", "-H", "x: bearer abc.def"], ["curl", "-H", "x: bearer ***"]),
        (["--metadata", "note=hf_abcdefghijklmnopqrst"], ["--metadata", "note=hf_***"]),
    ],
)
def test_no_secret_is_in_the_command_that_is_kept(typed: list[str], shown: list[str]) -> None:
    assert hide_argument_secrets(typed) == shown


@loop_over(
    "word",
    [
        "--max-tokens=128",
        "--server-args=--max-num-batched-tokens 8192 --long-prefill-token-threshold 4 --tokenizer /m",
        "--server-args=--ssl-keyfile /k.pem --skip-tokenizer-init --kv-cache-dtype fp8",
        "--speculative-token-map=/m/map.pt",
        "ttft:100",
        "http://localhost:8000",
        "/models/sk-learn/Qwen3-8B",
        "{'api_key': None, 'port': 8000, 'max_model_len': 4096}",
    ],
)
def test_what_is_no_secret_is_kept_as_it_is(word: str) -> None:
    assert hide_argument_secrets([word]) == [word]


@loop_over(
    ("text", "shown"),
    [
        ("{'api_key': ['a', 'b'], 'port': 1}", "{'api_key': ***, 'port': 1}"),
        ("Namespace(api_key='a b', port=1)", "Namespace(api_key=***, port=1)"),
        ("ServerArgs(api_key=None, hf_token='x', port=1)", "ServerArgs(api_key=None, hf_token=***, port=1)"),
        ('{"admin_api_key": "x", "port": 1}', '{"admin_api_key": ***, "port": 1}'),
    ],
)
def test_no_secret_is_in_a_servers_own_account(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


def test_searching_a_long_text_takes_linear_time() -> None:
    assert hide_secrets("a-" * 50_000) == "a-" * 50_000


def test_the_system_and_its_memory_are_told() -> None:
    facts = environment.describe_machine()
    assert facts["os"]
    assert facts["memory"].endswith(" GiB")
    assert float(facts["memory"].split()[0]) > 0


def git(place: Path, *words: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ("git", "-C", str(place), *words)
    return subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout.strip()


def read_commit(place: Path) -> str:
    with start_git(place) as read:
        return read()


@pytest.mark.whole
def test_a_checkout_names_its_commit_and_whether_it_is_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "--no-gpg-sign", "-m", "first")
    git(tmp_path, "tag", "v1")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert read_commit(tmp_path) == commit
    (tmp_path / "untracked").write_text("1")
    assert read_commit(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert read_commit(tmp_path) == f"{commit}+dirty"


@pytest.mark.whole
def test_an_installed_package_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_commit(tmp_path) == ""
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert read_commit(tmp_path) == ""
    monkeypatch.setenv("PATH", "")
    assert read_commit(tmp_path) == ""
