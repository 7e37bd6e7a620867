"""Command lines that cannot be: each is one line on the standard error, exit code 2, nothing is started."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from builders.loops import loop_over
from loadgen import cli

BIG = "1" + "0" * 20
DIGITS = "9" * 5000
DEEP = '{"a":' * 3000 + "1" + "}" * 3000
WHOLE = (
    "--num-prompts", "--num-warmups", "--vocab-size", "--random-output-len", "--random-input-len",
    "--random-prefix-len", "--max-concurrency", "--seed", "--port", "--repeat", "--top-k", "--logprobs",
)  # fmt: skip
REAL = (
    "--request-timeout", "--stall-timeout", "--bandwidth", "--ready-check-timeout-sec", "--duration",
    "--temperature", "--top-p",
)  # fmt: skip
LAUNCHED = (
    "--context-len",
    "--tensor-parallel",
    "--server-seed",
    "--launch-timeout-sec",
    "--memory-fraction",
)
OWNED = (
    "prompt", "messages", "text", "input_ids", "prompt_embeds", "max_tokens", "max_completion_tokens",
    "max_new_tokens", "stream", "model",
)  # fmt: skip
LINES = [
    *(f"bench {flag} {value}" for flag in WHOLE for value in (BIG, DIGITS, "-5x", "1e5", "nan", "''")),
    *(f"bench {flag} {value}" for flag in REAL for value in ("1e300x", "nan", "x")),
    *(f"bench {flag} 1e300" for flag in REAL[:5]),
    *(f"bench {flag} -5" for flag in WHOLE if flag != "--seed"),
    *(f"bench --launch vllm --model m --dry-run {f} {x}" for f in LAUNCHED for x in (BIG, DIGITS, "nan")),
    *(f"bench --extra-body '{{\"{name}\": 1}}'" for name in OWNED),
    "bench --extra-body '{\"sampling_params\": {\"max_new_tokens\": 5}}'",
    "bench --extra-body '{\"n\": 2}'",
    "bench --extra-body '{\"best_of\": 2}'",
    "bench --extra-body '{\"use_beam_search\": true}'",
    f"bench --extra-body '{DEEP}'",
    f"bench --chat-template-kwargs '{DEEP}'",
    f"bench --extra-body '{{\"a\": {DIGITS}}}'",
    "bench --extra-body '{\"a\": 1e400}'",
    "bench --extra-body '{\"a\": \"\\ud800\"}'",
    "bench --extra-body '['",
    "bench --profile deep.toml",
    "bench --profile dotted.toml",
    "bench --profile big.toml",
    "bench --profile huge.toml",
    "bench --profile zero.toml",
    "bench --profile latin.toml",
    "bench --profile directory.toml",
    "bench --profile ~nouser/x.toml",
    f"bench --profile {'a' * 300}.toml",
    f"bench --profile {'a/' * 3000}x.toml",
    "bench --profile nowhere",
    "bench --profile ,",
    "bench --model-config ~nouser/c.json",
    "bench --header Content-Length=5",
    "bench --header content-length=5",
    "bench --header Transfer-Encoding=chunked",
    "bench --header Connection=close",
    "bench --header Expect=100-continue",
    "bench --header 'A=b\rc'",
    "bench --header é=1",
    "bench --tokenizer \udcff",
    "bench --label \udcff",
    "\udcff",
    "compare \udcff",
    "bench --request-rate 1e-300",
    "bench --request-rate nan",
    "bench --burstiness nan",
    "bench --metadata x",
    "bench --goodput ttft:1e400",
    "bench --metric-percentiles 1e400",
    "bench --base-url http://[::1",
    "bench --base-url http://h:99999999",
    "bench --nonsense",
    "bench stray",
    "bench --server-args \"'\" --launch vllm",
    "bench --server-env =x --launch vllm",
    "bench --launch vllm",
    "bench --save-result --result-dir /dev/null/x",
    "ladder --input-len 5",
    "ladder --profile smoke",
    "ladder --profile ~nouser/x.toml",
    f"ladder --num-prompts {BIG}",
    "profiles nowhere",
    "profiles deep.toml",
    "profiles ~nouser/x.toml",
    "campaign deep.toml",
    "campaign dotted.toml",
    "campaign huge.toml",
    "campaign nowhere",
    "campaign ~nouser/x.toml",
    "campaign empty.toml",
    "campaign zeroes.toml",
    "campaign bigseed.toml",
    f"campaign demo --repeats {BIG}",
    f"campaign demo --repeats {DIGITS}",
    "campaign demo --only nobody",
    "campaign demo --retry-failed",
    "campaign --resume nowhere",
    "compare nowhere",
    "compare ~nouser/x",
    f"compare {'a' * 300}",
    "compare a.md --margin 1e300",
    "compare a.md --margin nan",
    "compare a.md --alpha nan",
    "compare a.md --bandwidth 1e300",
    "compare a.md --model-config ~nouser/c.json",
    "report nowhere",
    "report ~nouser/x",
    f"report {'a' * 300}",
    "report a.md --csv /dev/null/x",
    "report --layout none a.md",
    "audit ~nouser/x",
    "audit --bandwidth 1e300 a.md",
    "audit --model-config ~nouser/c.json a.md",
    "audit",
    "nonsense",
    f"{'n' * 5000}",
]  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {
        "deep.toml": "a = " + "[" * 5000,
        "dotted.toml": ".".join(["a"] * 100_000) + " = 1",
        "big.toml": f"input_len = {BIG}",
        "huge.toml": "#" * 2_000_000,
        "latin.toml": 'name = "é"',
        "empty.toml": "",
        "zeroes.toml": 'profiles = ["a\\u0000/b.toml"]\n[[checkpoints]]\nname = "x"\n',
        "bigseed.toml": f'profiles = ["smoke"]\nseed = {BIG}\n[[checkpoints]]\nname = "x"\n',
    }
    for name, text in contents.items():
        Path(name).write_text(text, "latin-1")
    Path("directory.toml").mkdir()
    Path("zero.toml").symlink_to("/dev/zero")
    published = Path(__file__).parents[1] / "data/results/vllm_bench_serve.stdout.txt"
    Path("a.md").write_text(published.read_text("utf-8"), "utf-8")


def test_there_are_more_than_a_hundred() -> None:
    assert len(set(LINES)) == len(LINES) > 144


@pytest.mark.whole
@pytest.mark.usefixtures("files")
@loop_over("line", LINES)
def test_a_wrong_command_line_is_one_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(shlex.split(line)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"loadgen: [^\n]+\n", said.err)
    assert len(said.err) < 1000
    assert not list(Path().glob("runs/*"))


@pytest.mark.whole
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are Unix's")
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("profiles {}/a.toml", "a.toml"),
        ("bench --profile {}/a.toml", "a.toml"),
        ("campaign {}/a.toml", "a.toml"),
        ("campaign --resume {}", "campaign.json"),
        ("data {}/a.jsonl", "a.jsonl"),
        ("data {}/a.csv", "a.csv"),
        ("data --trace {}/a.jsonl", "a.jsonl"),
        ("data --profile smoke --prompt-format corpus --prompt-corpus {}/a.txt", "a.txt"),
        ("data --profile smoke --input-dist histogram:{}/a.csv", "a.csv"),
        ("bench --profile smoke --api-key-file {}/key", "key"),
        ("compare {}/a.json", "a.json"),
        ("compare {}", "sweep.json"),
        ("compare {}", "limit.json"),
        ("audit {}/a.md", "a.md"),
        ("report {}", "result.json"),
        ("report {}", "sweep.json"),
        ("report {}", "limit.json"),
        ("report {}", "journal.bin"),
        ("merge {}", "result.json"),
    ],
)
def test_a_fifo_is_refused_and_not_waited_for(
    line: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / name)
    assert cli.main(shlex.split(line.format(tmp_path))) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert found.err.startswith("loadgen: ")
